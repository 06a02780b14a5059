"""The command line: click commands over the daemon's control.sock (docs/cli.md)."""
