"""Prepare files of prompts before training: find duplicates and leaks from benchmarks, copy records."""
