"""Grouped sampler: one prefill per prompt group, key-value caches, counter-based draws."""
