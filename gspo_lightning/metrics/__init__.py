"""What is measured, and how it adds up over micro-batches and ranks."""
