"""Load a policy on rank 0 only: the other ranks get its modules without weights, and their shards from rank 0.

Rank 0 reads the checkpoint, checks the model, and sends the finished policy as a pickle in which every parameter is
blank. Buffers travel by value, so those that no checkpoint holds (the frequencies of rotary embeddings) are the same
everywhere, to the bit. Weights follow when the strategy shards the policy (:func:`receive_weights`).
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel

from gspo_lightning.core.distributed import all_gather_objects, fail_together, from_first_rank, rank_and_world
from gspo_lightning.core.types import WeightsOn
from gspo_lightning.policy.policy import Policy

log = logging.getLogger(__name__)

T = TypeVar("T")


def made_by_first_rank(make: Callable[[], Policy]) -> Policy:
    """Return the result of ``make`` on rank 0; on other ranks the same policy on the meta device. A collective.

    If the modules of a model cannot be pickled, every rank makes its own, with a warning.

    Args:
        make: loads a policy; calls nothing collective.

    Raises:
        GSPOError: as ``make`` on rank 0, on every rank.
    """
    rank, world = rank_and_world()
    if world == 1:
        return make()
    policy: Policy | None = None
    with fail_together():
        if rank == 0:
            policy = make()
    content, reason = from_first_rank(lambda: _attempt(lambda: _pickled(policy)))
    if reason is None and policy is None:
        policy, reason = _attempt(lambda: _unpickled(content))
    reasons = [rank_reason for rank_reason in all_gather_objects(reason) if rank_reason is not None]
    if reasons:
        if rank == 0:
            log.warning("every rank loads the whole model, because its modules cannot be sent: %s", reasons[0])
        with fail_together():
            return policy if rank == 0 and policy is not None else make()
    assert policy is not None
    policy.weights_on = WeightsOn.FIRST_RANK
    return policy


def whole_state(policy: Policy) -> dict[str, Tensor] | None:
    """Return the weights on rank 0 and {} on others, before sharding takes them; None if every rank has them."""
    if policy.weights_on is WeightsOn.EVERY_RANK:
        return None
    return dict(policy.state_dict()) if rank_and_world()[0] == 0 else {}


def receive_weights(policy: Policy, state: dict[str, Tensor] | None, device: torch.device) -> None:
    """Fill the shards of every rank from rank 0, one parameter at a time; a collective.

    Args:
        policy: sharded by FSDP2.
        state: of :func:`whole_state`.
        device: where shards are kept.
    """
    if state is None:
        return
    if rank_and_world()[0] != 0:
        buffers = [(module, name, b) for module in policy.modules() for name, b in module._buffers.items()]
        policy.to_empty(device=device)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(policy, dict[str, Any](state), options=options)
    policy.weights_on = WeightsOn.EVERY_RANK


def _attempt(action: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the result, or why there is none. Any exception counts: a model's classes decide what pickling raises."""
    try:
        return action(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


class _WithoutWeights(pickle.Pickler):
    """Pickler that replaces parameters by blank ones; a parameter that several modules share stays one."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Parameter):
            return _blank, (obj.shape, obj.dtype, obj.requires_grad)
        if getattr(obj, "__qualname__", "").startswith(INPUT_HOOK):
            return _input_hook, ()
        return NotImplemented


INPUT_HOOK = f"{PreTrainedModel.enable_input_require_grads.__qualname__}.<locals>"
"""Embedding hook that transformers adds for gradient checkpointing under adapters: a closure, which pickle refuses."""


def _input_hook() -> Callable[..., None]:
    return _require_gradient


def _require_gradient(module: nn.Module, arguments: Any, output: Tensor) -> None:
    output.requires_grad_(True)


def _blank(shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad)


def _pickled(policy: Policy | None) -> bytes:
    buffer = io.BytesIO()
    _WithoutWeights(buffer, pickle.HIGHEST_PROTOCOL).dump(policy)
    return buffer.getvalue()


def _unpickled(content: bytes | None) -> Policy:
    assert content is not None
    policy = pickle.loads(content)
    assert isinstance(policy, Policy)
    return policy
