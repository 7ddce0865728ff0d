"""Rewards for programs, which run in the sandbox and nowhere else."""
