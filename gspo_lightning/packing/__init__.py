"""Packing: rows cut into micro-batches by a token budget, and what happens when memory runs out."""
