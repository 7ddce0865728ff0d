"""Data: prompts of a run, and files of them before training."""
