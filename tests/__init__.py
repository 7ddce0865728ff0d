"""Tests, room by room as in the package; whole runs are in tests/runs."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Of the repository."""
