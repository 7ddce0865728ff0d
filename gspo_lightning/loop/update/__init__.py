"""Policy update: the loss of a mini-batch, its optimizer, and the handling of non-finite values."""
