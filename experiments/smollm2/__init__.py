"""A real model on two CPU cores: what configs/smollm2.yaml teaches SmolLM2-135M-Instruct (docs/real_model.md)."""
