"""MCP over Streamable HTTP (docs/http.md).

The transport itself (`endpoint`, `sessions`, `exchange`, `replay`, `checks`, `listener`) knows nothing of agents: it
serves what a `Backend` opens to whom that knows. `server` is the daemon's backend.
"""
