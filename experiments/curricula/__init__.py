"""Curricula beside dead-group resampling, on the quickstart's task with three difficulties mixed in."""
