"""Load: settings of a model, its weights and tokenizer, and what becomes of them on the way in."""
