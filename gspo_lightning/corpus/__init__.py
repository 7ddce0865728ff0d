"""Files of prompts before training: duplicates, leaks from benchmarks, and copies of records."""
