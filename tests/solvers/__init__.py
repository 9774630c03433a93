"""Every applicable solver of products, convolutions and attention, forced on in turn."""
