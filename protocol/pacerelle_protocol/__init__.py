"""The common language of daemon, relay, phone and shim: bytes in, values out.

No sockets, no clock, no store. Nothing is imported here, so that `pacerelle_protocol.local` stays light: it is what a
command that only wants a path pays for.
"""
