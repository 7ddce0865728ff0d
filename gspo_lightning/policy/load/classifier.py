"""Padding of sequence classifiers: a row must be read at its last token, whatever its neighbours in a batch.

Decoders read the last token that is not the padding token of their config. If rows are padded with another token,
they read a state of the padding in every row but the longest, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_lightning.core.errors import UserError

_SAME = 0.01
"""Largest mean difference of two readings of a row, relative to their mean size, that counts as rounding.

Another token's state differs by about 1.
"""
_SAME_IN_16_BITS = 0.1
"""The same if a number has 16 bits."""


def pad_of(model: PreTrainedModel) -> int | None:
    """Return the padding token that a model looks for; None if it has none or an invalid one (-1)."""
    for config in (model.config.get_text_config(), model.config):
        token: int | None = getattr(config, "pad_token_id", None)
        if token is not None and 0 <= token < _tokens(model):
            return token
    return None


def set_pad(model: PreTrainedModel, token: int, field: str = "model.name_or_path") -> None:
    """Set a model's padding token to ``token``; the rows of a batch must be padded with it.

    Raises:
        UserError: the model has no embedding for it.
    """
    tokens = _tokens(model)
    if token >= tokens:
        raise UserError(
            field,
            f"pads rows with token {token} of its tokenizer, but the model knows tokens below {tokens} only",
            fix="set pad_token in its tokenizer_config.json to a token of the model",
        )
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = token


def _tokens(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def output_layers(model: PreTrainedModel, outputs: int) -> list[nn.Linear]:
    """Return the linear layers outside the backbone with ``outputs`` outputs."""
    backbone = set(model.base_model.modules())
    outside = (module for module in model.modules() if module not in backbone)
    return [module for module in outside if isinstance(module, nn.Linear) and module.out_features == outputs]


@torch.no_grad()
def check_reading(
    model: PreTrainedModel, alone: Mapping[str, Tensor], beside: Mapping[str, Tensor], field: str = "model.name_or_path"
) -> None:
    """Refuse a classifier whose output for a row depends on the length of the row beside it.

    Args:
        model: a sequence classifier.
        alone: inputs of a batch whose first row has no padding.
        beside: the same rows with a longer one, so that the first is padded.
        field: name of the model's setting in the message.

    Raises:
        UserError: the first rows differ by more than rounding.
    """
    heads = output_layers(model, int(model.config.num_labels))
    with _giving_what_it_reads(heads[0]) if len(heads) == 1 else nullcontext():
        output = model(**alone).logits[0].double()
        padded_output = model(**beside).logits[0].double()
    is_wide = all(parameter.dtype.itemsize >= 4 for parameter in model.parameters())
    exact = is_wide and not torch.is_autocast_enabled(output.device.type)
    gap = float((output - padded_output).abs().mean())
    if not gap <= (_SAME if exact else _SAME_IN_16_BITS) * float(output.abs().mean()):
        raise UserError(
            field,
            f"{type(model).__name__} judges a text otherwise beside a longer one than alone: it reads padding",
            fix="use a model of another family, or report this with its name",
        )


@contextmanager
def _giving_what_it_reads(head: nn.Linear) -> Iterator[None]:
    """Make a head return its input: a new head outputs 0 for everything, while its input state tells rows apart."""

    def state(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        given: Tensor = inputs[0]
        return given

    handle = head.register_forward_hook(state)
    try:
        yield
    finally:
        handle.remove()
