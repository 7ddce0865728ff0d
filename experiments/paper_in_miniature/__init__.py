"""The GSPO paper's claims on tiny models: ``python -m experiments.paper_in_miniature``."""
