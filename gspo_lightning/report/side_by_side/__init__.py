"""Comparison of several objectives on the same rollouts."""
