"""What can be wrong with hosts and their files.

::

    CliError
    └── HostFailed       a host's entry does not work, or there is none; exit code 1
        └── BadHostFile  a host's file cannot be read, understood or written; exit code 1
    ValueError
    └── BadText          a file's text is not what its format asks for; becomes a BadHostFile with the file's name
"""

from __future__ import annotations

from pacerelle_cli.errors import CliError


class HostFailed(CliError):
    code = "host_failed"


class BadHostFile(HostFailed):
    code = "bad_host_file"


class BadText(ValueError):
    """`line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line
