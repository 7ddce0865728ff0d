"""Policy: a transformers causal language model, its tokenizer, and the one forward behind every log-probability."""
