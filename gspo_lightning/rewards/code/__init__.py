"""Code rewards: programs run in the sandbox and nowhere else."""
