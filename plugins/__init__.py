"""Your rewards, objectives and rollout sources: every file in this folder can be named in ``plugins:``."""
