"""Core: what every wing may use; it imports nothing above itself."""
