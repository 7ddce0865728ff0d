"""Tiny untaught models whose chat template opens a thought, with marks that decoding keeps or drops."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings

BOX = r"\boxed{4}"
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def thinking_model(folder: Path, *, special: bool, template: str = OPENED) -> Path:
    """Write a model that says a right answer, or an end of a thought, in about every fourth token."""
    torch.manual_seed(0)
    policy = load_policy(ModelSettings("tiny-qwen3"))
    marks = [AddedToken(mark, special=special, normalized=False) for mark in ("<think>", "</think>")]
    policy.tokenizer.add_tokens([*marks, AddedToken(BOX, normalized=False)])
    policy.tokenizer.chat_template = template
    policy.model.resize_token_embeddings(len(policy.tokenizer))
    with torch.no_grad():  # nearly uniform, and each new token as likely as several old ones
        head = policy.model.get_output_embeddings().weight
        head.mul_(0.05)
        head[policy.tokenizer.eos_token_id] = head[policy.tokenizer.convert_tokens_to_ids("7")]
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder
