"""Rollouts written to files, and replayed from them."""
