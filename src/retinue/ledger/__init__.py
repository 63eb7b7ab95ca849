"""Durable storage of runs, events, deliveries and approvals in SQLite."""
