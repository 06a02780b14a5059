"""Telling others of events: webhooks, commands that wake an assistant, reminders. Off until somebody sets them up."""
