"""Expert routes in server answers: parse and check the output of ``--enable-return-routed-experts``."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo_lightning.policy.routing import Routing, index_dtype
from gspo_lightning.rollouts.serving.answers import BadReplyError, shown

__all__ = ["routes_of"]


def routes_of(choice: dict[str, Any], tokens: int, routing: Routing) -> Tensor:
    """Return routes [tokens - 1, L, k] of a prompt and its response; the last token was never forwarded.

    Args:
        choice: one choice of a reply of ``/v1/completions``.
        tokens: number of tokens of prompt and response.
        routing: routing of the trained policy.

    Raises:
        BadReplyError: the choice has no routes, or those of another model or of other tokens.
    """
    text = choice.get("routed_experts")
    if not isinstance(text, str):
        raise BadReplyError(
            "it does not say which experts it sampled with; start it with --enable-return-routed-experts"
        )
    try:
        found = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise BadReplyError(f"its routed_experts are no array ({error}): {shown(text)}") from error
    expected = (tokens - 1, routing.layers, routing.top_k)
    if found.shape != expected:
        raise BadReplyError(f"its routed_experts have the shape {found.shape} instead of {expected}")
    if found.dtype.kind not in "iu" or not (int(found.min()) >= 0 and int(found.max()) < routing.experts):
        raise BadReplyError(f"its routed_experts are no numbers of {routing.experts} experts")
    return torch.from_numpy(found.astype(np.int64)).to(index_dtype(routing.experts))
