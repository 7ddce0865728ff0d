"""Several objectives beside one another on the same rollouts."""
