"""A decode step without modules: the same numbers with fewer small operations."""
