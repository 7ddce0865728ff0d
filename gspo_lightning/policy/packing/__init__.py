"""Packing: cut rows into micro-batches by a token budget, and retry smaller when memory runs out."""
