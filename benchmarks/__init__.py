"""What a GSPO step costs here, measured beside TRL on the same work: ``python -m benchmarks --help``, README.md."""
