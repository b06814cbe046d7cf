"""Worlds: who is here, what changed, and what each client's data is, as seeded data."""
