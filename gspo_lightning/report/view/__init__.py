"""``gspo view``: a page over run folders, from their files to the browser; nothing here writes to what it shows."""
