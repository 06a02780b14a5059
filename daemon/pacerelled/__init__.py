"""The daemon: owns the relay connection, the encryption state and the encrypted store of every agent of one person."""

__version__ = "0.1.0"
