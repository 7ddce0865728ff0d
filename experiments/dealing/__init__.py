"""Mini-batches of whole groups, of shuffled rows, or of equal parts of every group: what each of them learns."""
