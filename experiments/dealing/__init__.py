"""Whole groups, shuffled rows or equal parts of every group in a mini-batch: what each learns from the same rollouts."""
