"""The encrypted store: one SQLCipher file, one thread that writes it, one module per table family."""
