"""The domain: inbox, outbox, claims, checkpoints, events. Knows no transport."""
