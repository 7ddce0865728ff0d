"""Loop: what an iteration does between two updates, and the update itself."""
