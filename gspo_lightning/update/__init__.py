"""The update: the loss of a mini-batch, its optimizer, and what happens when it is not finite."""
