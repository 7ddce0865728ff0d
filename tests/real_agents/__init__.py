"""Agents with real clients, which have an environment of their own: ``make test-agents``."""
