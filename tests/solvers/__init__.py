"""Every applicable solver of products and convolutions, forced on in turn."""
