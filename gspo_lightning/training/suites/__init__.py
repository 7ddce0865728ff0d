"""Benchmark suites as YAML files: problems, prompt, sampling, reward and metrics."""
