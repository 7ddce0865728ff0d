"""Histograms, texts, tables and pictures of a run, for loggers: each gets what it can show."""
