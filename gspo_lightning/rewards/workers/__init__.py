"""Worker processes that compute rewards: they may hang or crash without harm."""
