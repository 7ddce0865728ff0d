"""Experience: one iteration from prompts to mini-batches."""
