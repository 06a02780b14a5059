"""A person's device: its own process, its own Signal identity, one home directory (docs/phone.md)."""
