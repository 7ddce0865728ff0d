"""Training: modules, data, cold start, settings checks, and ``GSPOTrainer``."""
