"""Metrics: measurements, and their sums over micro-batches and ranks."""
