"""Histograms, texts, tables and pictures of a run, written to each logger in the form that it supports."""
