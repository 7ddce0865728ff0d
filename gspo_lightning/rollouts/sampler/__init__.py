"""The sampler of this package: a prompt once for its whole group, key-value caches, counter-based draws."""
