"""Every operation, declared once, with its public NumPy-like function beside it."""
