"""Worker processes that judge completions: they may hang or crash without harm."""
