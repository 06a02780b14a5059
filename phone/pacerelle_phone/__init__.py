"""A person's device: its own process, its own Signal identity, one home directory (docs/phone.md)."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a program that wants the log says where to
