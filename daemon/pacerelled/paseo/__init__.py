"""The bridge to a Paseo daemon on this machine: imported only when the settings turn it on (docs/paseo.md)."""
