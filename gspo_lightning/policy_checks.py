"""What is verified on a model before it is trained: that its logits and its layout mean what this package thinks."""

from __future__ import annotations

import logging
import warnings

import torch

from gspo_lightning.attention import UnsupportedAttentionError, check_attention, windows
from gspo_lightning.errors import UserError, first_line
from gspo_lightning.policy import Layout, Policy
from gspo_lightning.rope import pin_rope
from gspo_lightning.types import MicroBatch

__all__ = ["check_head", "choose_layout", "probe"]

log = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
"""Mean difference of log-probabilities (nats) that is rounding and not another attention; 0.05 in half precision."""


def check_head(policy: Policy) -> None:
    """Compare :meth:`Policy.head` on the backbone with the model's own logits on a few tokens.

    A family whose head does more than this package knows would be trained on wrong log-probabilities; here it is loud.

    Raises:
        UserError: they differ.
    """
    ids = torch.arange(4, device=policy.device).unsqueeze(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = policy.model(input_ids=ids, use_cache=False).logits.float()
        ours = policy.head(policy.backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    if own.shape != ours.shape or not torch.allclose(own, ours, atol=1e-3, rtol=1e-3):
        raise UserError(
            "model.name_or_path",
            f"{type(policy.model).__name__} computes its logits in a way this package does not know",
            fix="use another model family, or report this with the name of the model",
        )


def choose_layout(policy: Policy, layout: Layout, longest: int, device: torch.device | None = None) -> None:
    """Set ``policy.packed`` by what the model itself answers: both layouts must give the same log-probabilities.

    Args:
        policy: the model.
        layout: ``auto`` falls back to padding with a message; ``packed`` insists.
        longest: tokens of the longest row that training may see.
        device: where it will be trained; where it is, by default.

    Raises:
        UserError: ``packed`` is asked for and this model cannot.
    """
    policy.packed = False
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    longest = min(longest, context or longest)
    pin_rope(policy.model, longest)
    if layout == "padded":
        return
    reason = _why_not_packed(policy, longest, device or policy.device)
    if reason is None:
        policy.packed = True
    elif layout == "packed":
        raise UserError("model.layout", f"packed does not work here: {reason}", fix="use model.layout: auto or padded")
    else:
        log.warning("model.layout: rows are padded and prompts repeated, because of %s", reason)


@torch.no_grad()
def _why_not_packed(policy: Policy, longest: int, device: torch.device) -> str | None:
    if device.type != "cpu" and (reason := _why_no_kernel(policy, device)) is not None:
        return reason
    if any(window < longest for window in windows(policy.backbone)):
        return f"a sliding window of {min(windows(policy.backbone))} tokens and rows of up to {longest}"
    batch = probe(policy)
    padded, _ = policy(batch)
    policy.packed = True
    try:
        packed, _ = policy(batch)
    except (UnsupportedAttentionError, NotImplementedError, RuntimeError, TypeError) as error:
        return first_line(error)
    finally:
        policy.packed = False
    difference = float((packed - padded).abs().sum() / batch.response_mask.sum())
    if not difference <= _TOLERANCE.get(padded.dtype if _is_exact(policy) else torch.bfloat16, 0.05):
        return f"log-probabilities that differ by {difference:.2g} nats on average from those of padded rows"
    return None


def _why_no_kernel(policy: Policy, device: torch.device) -> str | None:
    """Tried there on random numbers: a kernel that is compiled for a device may fail or be wrong in many ways."""
    config = policy.model.config.get_text_config()
    heads = config.num_attention_heads
    pair = (heads, getattr(config, "num_key_value_heads", None) or heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    for dtype in {next(policy.parameters()).dtype, torch.bfloat16}:  # of 32-true and of bf16-mixed
        try:
            check_attention(device, pair, size, dtype)
        except Exception as error:
            return first_line(error)
    return None


def _is_exact(policy: Policy) -> bool:
    return next(policy.parameters()).dtype in (torch.float32, torch.float64)


def probe(policy: Policy) -> MicroBatch:
    """Two prompts with two responses each, all of different lengths."""
    prompts, responses = torch.tensor([5, 5, 3, 3]), torch.tensor([4, 1, 6, 2])
    vocabulary = policy.model.config.get_text_config().vocab_size
    ids = torch.arange(4 * 9).view(4, 9) * 7 % vocabulary
    ids[1], ids[3] = torch.cat([ids[0, :5], ids[1, 5:]]), torch.cat([ids[2, :3], ids[3, 3:]])
    mask = torch.arange(6) < responses.unsqueeze(1)
    batch = MicroBatch(ids, prompts, responses, mask, torch.zeros(4), prompt_index=torch.tensor([0, 0, 1, 1]))
    return batch.to(policy.device)
