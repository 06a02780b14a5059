"""`pacerelle host`: the entry that starts Pacerelle, in the files of the MCP hosts.

`catalogue` knows the hosts, `entry` what an entry should be, `formats` (with `jsonc`, `toml` and `yaml`) how to edit a
text without touching the rest of it, `files` how to replace a file, `settings` all of these for one host, `trial` how a
host starts an entry.
"""

from __future__ import annotations

from .command import host

__all__ = ["host"]
