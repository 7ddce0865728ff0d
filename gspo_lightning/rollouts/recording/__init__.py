"""Rollouts written to files, and trained on again from there."""
