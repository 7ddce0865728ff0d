"""Pictures in policies: processors, features, and positions of tokens."""
