"""Proven defects, each as a patch that puts it back: the tests that its head names must fail with it."""
