"""Does a driver compute each kind of kernel rightly?  A few at its first use, many on demand."""
