"""Commands of their own, next to the ones that train."""
