"""Parallel: ranks that compute parts of the same rows."""
