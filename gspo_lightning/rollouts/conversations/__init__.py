"""Rollouts of several turns with an environment."""
