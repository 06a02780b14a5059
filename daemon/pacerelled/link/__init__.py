"""The relay: one WebSocket connection and the REST calls of an agent."""
