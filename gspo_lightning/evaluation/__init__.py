"""Evaluation: held-out prompts answered, judged and counted."""
