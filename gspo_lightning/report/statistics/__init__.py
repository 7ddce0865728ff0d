"""Statistics of evaluations and their uncertainty: plain NumPy, no model, no file."""
