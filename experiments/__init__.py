"""Experiments: each is one command that writes its tables under docs/."""
