"""``gspo compare``: several objectives, the same prompts and seeds, one picture and one table."""
