"""Tests of agents as rollout sources."""
