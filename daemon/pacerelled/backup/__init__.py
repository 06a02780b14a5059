"""Backups: one file, sealed with a passphrase, with everything that the store needs on another machine."""
