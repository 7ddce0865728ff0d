"""Evaluation: answer held-out prompts, grade the answers and compute metrics."""
