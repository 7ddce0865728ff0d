"""Rewards for reasoning-gym's families: which are supported, how they are scored, and why others are refused."""
