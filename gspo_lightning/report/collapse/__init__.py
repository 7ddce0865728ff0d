"""Collapse signatures and the watch that looks for them, in training and over the scalars of a recorded run."""
