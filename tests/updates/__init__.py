"""One update of every kind of run beside the same update in float64, computed without this package's training."""
