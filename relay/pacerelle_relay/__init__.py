"""A relay of one's own: agents reach it with the hosted service's protocol, people's devices with docs/relay.md's."""
