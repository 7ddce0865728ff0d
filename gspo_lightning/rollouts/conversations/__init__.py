"""Multi-turn rollouts with an environment."""
