"""What is measured: one spec per metric, by subject."""
