"""Model checks: before training, that a model's logits and rows mean what this package assumes."""
