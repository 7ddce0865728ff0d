"""Training: the loop, its data, its checks and its checkpoints."""
