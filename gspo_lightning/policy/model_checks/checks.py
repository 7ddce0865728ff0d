"""Checks of a model before training: its logits and row layout mean what this package assumes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.pictures import Media, Picture
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.adapters.adapter_files import adapted_layers
from gspo_lightning.policy.attention import check_attention, uncompiled, windows
from gspo_lightning.policy.attention.rope import follows_length, pin_rope
from gspo_lightning.policy.kernels.rounding import few_tokens
from gspo_lightning.policy.load.model_settings import Layout
from gspo_lightning.policy.load.trained_dtype import check_trained_dtype
from gspo_lightning.policy.model_checks.row_isolation import Probe, answers, carried_state
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.image_processor import ImageProcessorAdapter

log = logging.getLogger(__name__)

ANOTHER = "use another model family, or report this with the name of the model"
LONGEST = 1 << 20
"""Tokens of a row of a model without a largest number of positions: every window is shorter."""
_RESPONSE = 4
_TEXT = 3


def check_head(policy: Policy) -> None:
    """Compare :meth:`Policy.head` on the backbone with the model's own logits on a few tokens.

    A family whose head does more than this package knows would be trained on wrong log-probabilities.

    Raises:
        UserError: the logits differ.
    """
    ids = few_tokens(policy.model, 4)
    with torch.no_grad(), warnings.catch_warnings(), _refusing(policy):
        warnings.simplefilter("ignore")
        expected = policy.sayable(policy.model(input_ids=ids, use_cache=False).logits).float()
        logits = policy.head(policy.backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    if expected.shape != logits.shape or not torch.allclose(expected, logits, atol=1e-3, rtol=1e-3):
        raise UserError(
            "model.name_or_path",
            f"{type(policy.model).__name__} computes its logits in a way this package does not know",
            fix=ANOTHER,
        )


@contextlib.contextmanager
def _refusing(policy: Policy) -> Iterator[None]:
    """Turn any exception of an unknown model family into a refusal."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        problem = f"{type(policy.model).__name__} cannot be trained: its forward pass on a few tokens fails: "
        raise UserError("model.name_or_path", problem + first_line(error), fix=ANOTHER) from error


def choose_layout(
    policy: Policy,
    layout: Layout,
    longest: int,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Set ``policy.packed`` by probing the model, and refuse a model whose padded rows are wrong.

    Rotary embeddings that depend on a call's length are pinned first (:mod:`gspo_lightning.policy.attention.rope`).

    Args:
        policy: the model.
        layout: ``auto`` falls back to padding with a message; ``packed`` insists.
        longest: tokens of the longest row that training, sampling or an evaluation may see.
        device: training device; the policy's by default.
        dtype: compute dtype of attention there; the weights' own by default.

    Raises:
        UserError: a row's result depends on other rows; or ``packed`` is set, but the model does not support it.
    """
    policy.packed = False
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    longest = min(longest, context or longest)
    pin_rope(policy.model, longest)
    probe = Probe(policy, longest)
    with _refusing(policy), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = probe.why_not_exact()
        if wrong is None and policy.image_processor is not None:
            wrong = PictureProbe(policy, policy.image_processor).why_not_exact(probe.limit)
    if wrong is not None:
        raise UserError("model.name_or_path", f"{type(policy.model).__name__} {wrong}", fix=ANOTHER)
    if layout == "padded":
        return
    reason = _why_not_packed(probe, device or policy.device, dtype or next(policy.parameters()).dtype)
    if reason is None:
        policy.packed = True
    elif layout == "packed":
        raise UserError("model.layout", f"packed does not work here: {reason}", fix="use model.layout: auto or padded")
    else:
        policy.padded_because = reason
        log.warning("model.layout: rows are padded and prompts repeated, because of %s", reason)


def pack_if_exact(policy: Policy, dtype: torch.dtype | None = None) -> None:
    """Set ``policy.packed`` for sampling if probes show the same log-probabilities at any length; else rows are padded.

    Args:
        policy: the model, on the device that samples. Nothing of it is pinned or refused.
        dtype: compute dtype of attention; the weights' own by default.
    """
    policy.packed = False
    config = policy.model.config
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or LONGEST
    if not follows_length(config):
        why = _why_not_packed(Probe(policy, longest), policy.device, dtype or next(policy.parameters()).dtype)
        policy.packed = why is None


def _why_not_packed(probe: Probe, device: torch.device, dtype: torch.dtype) -> str | None:
    policy = probe.policy
    longest = probe.longest
    state = carried_state(policy.model)
    if state is not None:
        return state
    short = [window for window in windows(policy.backbone) if window < longest]
    if short:
        return f"a sliding window of {short[0]} tokens and rows of up to {longest}"
    try:
        reason = None if device.type == "cpu" else why_no_kernel(policy, device, dtype)
        # probes compute in the dtype of the weights: under autocast a kernel of that would be compiled for them alone
        other = dtype != next(policy.parameters()).dtype
        with uncompiled() if other else contextlib.nullcontext():
            reason = reason or probe.why_not_packed()
            if reason is None and policy.image_processor is not None:
                reason = PictureProbe(policy, policy.image_processor).why_not_packed(probe.limit)
        return reason
    except Exception as error:  # any exception: a family's modules in an untested call
        return first_line(error)


def why_no_kernel(policy: Policy, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why packed rows cannot attend on a device; None if they can.

    Runs attention there on random numbers, only in the dtype in use because every dtype compiles kernels. A compiled
    kernel may fail or be wrong in many ways.
    """
    config = policy.model.config.get_text_config()
    heads = config.num_attention_heads
    pair = (heads, getattr(config, "num_key_value_heads", None) or heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    try:
        check_attention(device, pair, size, dtype)
    except Exception as error:
        return first_line(error)
    return None


def check_causal(model: PreTrainedModel) -> None:
    """Check the type of a model that the user built.

    Raises:
        UserError: it is not a causal language model.
    """
    causal = isinstance(model, PreTrainedModel) and model.can_generate() and not model.config.is_encoder_decoder
    if not causal:
        raise UserError(
            "model",
            f"is {type(model).__name__}, but must be a causal language model of transformers",
            fix="load it with AutoModelForCausalLM.from_pretrained",
        )


def check_model(model: PreTrainedModel) -> None:
    """Check a model that the user built and wants to train: its type, its adapters, and the dtype of trained weights.

    Raises:
        UserError: it is not a causal language model, has adapters of other layers than linear ones, has nothing to
            train, or has weights to train in bfloat16 or float16.
    """
    check_causal(model)
    for name, layer in adapted_layers(model):
        if not hasattr(layer.get_base_layer(), "in_features"):
            problem = f"has adapters of {name}, whose weights are no linear layer: they cannot be merged"
            raise UserError("model", problem, fix="leave experts and routers out of PEFT's target_modules")
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("model", "has no parameter that requires a gradient", fix="model.requires_grad_(True)")
    check_trained_dtype(model, "model", "use model.float(), or train adapters that are float32")


class PictureProbe:
    """Probe of two prompts with a picture each and two responses each.

    Args:
        policy: reads pictures; :attr:`Policy.packed` is restored afterwards.
        image_processor: picture processor of the policy.
    """

    def __init__(self, policy: Policy, image_processor: ImageProcessorAdapter) -> None:
        self.policy = policy
        self.image_processor = image_processor
        first, second, other = (image_processor.noise(seed) for seed in (1, 2, 3))
        self.rows = self._batch(first, second)
        self.others = self._batch(first, other)
        self.padded = answers(self.policy, self.rows, packed=False)

    def why_not_exact(self, limit: float) -> str | None:
        """Return what is wrong with padded rows, by more than ``limit`` nats; None if nothing was found."""
        for row in (0, 2):
            gap = float((self.padded[row] - self._alone(row)).abs().mean())
            if not gap <= limit:
                return f"gives a row with a picture log-probabilities {gap:.2g} nats off those of the row alone"
        return None

    def why_not_packed(self, limit: float) -> str | None:
        """Return what is wrong with rows that share the picture of their prompt; None if nothing was found."""
        packed = answers(self.policy, self.rows, packed=True)
        gap = float((packed - self.padded).abs().mean())
        if not gap <= limit:
            return f"log-probabilities of rows with pictures that differ by {gap:.2g} nats from those of padded rows"
        moved = float((packed - answers(self.policy, self.others, packed=True))[:2].abs().mean())
        if not moved <= limit:
            return f"log-probabilities that move by {moved:.2g} nats when the picture of another prompt changes"
        return None

    def _batch(self, *pictures: Picture) -> MicroBatch:
        unsaid = set(self.image_processor.unsaid)
        size = self.policy.model.config.get_text_config().vocab_size
        token_ids = [token for token in range(min(size, 64)) if token not in unsaid]
        rows: list[list[int]] = []
        for picture in pictures:
            prompt = [
                self.image_processor.start,
                *[self.image_processor.image] * picture.tokens,
                self.image_processor.end,
                *token_ids[5 : 5 + _TEXT],
            ]
            for sample in (1, 2):
                response = [token_ids[(7 * sample + 3 * step) % len(token_ids)] for step in range(_RESPONSE)]
                rows.append(prompt + response)
        media: tuple[Media, ...] = tuple((p,) for p in pictures for _ in range(2))
        total = torch.tensor([len(row) for row in rows])
        responses = torch.full_like(total, _RESPONSE)
        ids = torch.zeros(len(rows), int(total.max()), dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        mask = torch.ones(len(rows), _RESPONSE, dtype=torch.bool)
        index = torch.arange(len(pictures)).repeat_interleave(2)
        batch = MicroBatch(ids, total - _RESPONSE, responses, mask, torch.zeros(len(rows)), prompt_index=index)
        return replace(batch, media=media).to(self.policy.device)

    @torch.no_grad()
    def _alone(self, row: int) -> Tensor:
        """Return [T] from transformers' own forward, with its positions and its placement of features."""
        rows = self.rows
        assert rows.media is not None
        width = int(rows.prompt_lengths[row])
        ids = rows.input_ids[row, : width + _RESPONSE]
        model = self.policy.model
        picture_inputs = self.image_processor.asked(rows.media[row], ids[None])
        inputs = {name: values.to(ids.device) for name, values in picture_inputs.items()}
        inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
        logits = model(input_ids=ids[None], use_cache=False, **inputs).logits[0, width - 1 : -1]
        model.base_model.rope_deltas = None
        scores = self.policy.sayable(logits).to(self.padded.dtype).log_softmax(-1)
        return scores.gather(-1, ids[width:, None])[:, 0]
