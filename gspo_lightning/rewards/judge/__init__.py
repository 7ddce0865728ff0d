"""LLM judges, called over an OpenAI-compatible API."""
