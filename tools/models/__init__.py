"""Every causal family of the installed transformers on a tiny config: ``python -m tools.models`` (docs/models.md)."""
