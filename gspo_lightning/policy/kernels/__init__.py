"""Kernels: single operations of a model, replaced or measured."""
