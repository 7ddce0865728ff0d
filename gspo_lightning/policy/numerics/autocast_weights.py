"""Autocast's dtype, and weights cast to it once per rollout.

Autocast keeps weights in float32 and casts each one whenever a product reads it. Its cache does nothing if nothing is
trained (``torch.inference_mode``) and is off under Lightning, so sampling would read and write every weight at
every token. One short forward pass shows which weights autocast casts. Those are replaced, and results stay
bit-identical.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gspo_lightning.policy.kernels.rounding import few_tokens
from gspo_lightning.policy.policy import Policy

VIEWS = {
    "alias", "detach", "expand", "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view",
}  # fmt: skip
"""Operators that take views: they do not read a weight."""
TOKENS = 4


@contextlib.contextmanager
def in_compute_dtype(policy: Policy) -> Iterator[Policy]:
    """Yield a policy whose products cast no weight, for forward passes without gradients; without autocast, the policy.

    Call it inside the autocast of the rollout. All other weights are the policy's own; the copy is dropped at the end.
    """
    dtype = autocast_dtype(policy.device)
    if dtype is None or policy.in_lockstep or not _wide(policy, dtype):
        yield policy
        return
    if policy.decoding.cast is None:
        policy.decoding.cast = _cast_by_autocast(policy, dtype)
    twin = _twin(policy, policy.decoding.cast, dtype) if policy.decoding.cast else policy
    yield twin


def _wide(policy: Policy, dtype: torch.dtype) -> bool:
    return any(p.is_floating_point() and p.dtype != dtype for p in policy.model.parameters())


@torch.no_grad()
def _twin(policy: Policy, cast: frozenset[str], dtype: torch.dtype) -> Policy:
    """Copy the policy with some of its weights cast, each once; all others are shared."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), False) for p in policy.model.parameters()}
    memo |= {id(b): b for b in policy.model.buffers()}
    twin = policy.frozen_copy(memo)
    narrow: dict[int, nn.Parameter] = {}  # by the weight, which several names may share
    for name in sorted(cast):
        owner, _, leaf = name.rpartition(".")
        weight = policy.model.get_submodule(owner)._parameters[leaf]
        assert weight is not None
        if id(weight) not in narrow:
            narrow[id(weight)] = nn.Parameter(weight.detach().to(dtype), False)
        twin.model.get_submodule(owner)._parameters[leaf] = narrow[id(weight)]
    twin.cast_from = lambda: policy  # not as an attribute, which would be a part of the twin
    return twin.train(policy.training)


def _cast_by_autocast(policy: Policy, dtype: torch.dtype) -> frozenset[str]:
    """Return names of parameters that are read only by casts to ``dtype``.

    A module that the pass does not reach (an expert without a token) is classified like others of its class.
    """
    watch = _Watch(policy.model, dtype)
    with torch.no_grad(), watch:
        hidden = policy.backbone(input_ids=few_tokens(policy.model, TOKENS), use_cache=False).last_hidden_state
        policy.head(hidden)
    kinds = {key: _kind(watch, key) for key in watch.owned}
    verdicts: dict[tuple[type, str], bool] = {}
    for key, only in watch.only_cast.items():
        verdicts[kinds[key]] = verdicts.get(kinds[key], True) and only
    return frozenset(key for key in watch.owned if watch.only_cast.get(key, verdicts.get(kinds[key], False)))


def _kind(watch: _Watch, key: str) -> tuple[type, str]:
    return type(watch.owned[key]), key.rpartition(".")[2]


class _Watch(TorchDispatchMode):
    """Dispatch mode that records how a model's parameters are read; autocast works above it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype
        self.owned: dict[str, nn.Module] = {}
        """Full name of each parameter, tied ones under each of their names -> its module."""
        self.only_cast: dict[str, bool] = {}
        """Full name of each parameter that was read -> True if only by casts."""
        self._places: dict[int, list[str]] = {}
        for path, module in model.named_modules():
            for leaf, parameter in module._parameters.items():
                if parameter is not None and parameter.is_floating_point() and parameter.dtype != dtype:
                    name = f"{path}.{leaf}" if path else leaf
                    self.owned[name] = module
                    self._places.setdefault(_storage(parameter), []).append(name)
        self._inside: list[nn.Module] = []
        self._thread = threading.get_ident()
        """Thread to watch: hooks see the modules of all threads, and another one may be training."""

    def __enter__(self) -> _Watch:
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _enter(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() == self._thread:
            self._inside.append(module)

    def _leave(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            cast = name == "_to_copy" and out.dtype == self.dtype
            for tensor in tree_leaves((args, kwargs)):
                places = self._places.get(_storage(tensor)) if isinstance(tensor, Tensor) else None
                if places:
                    self._note(places, cast)
        return out

    def _note(self, places: list[str], cast: bool) -> None:
        """Attribute a read of tied parameters to the module being called, if it owns one of them."""
        here = [place for place in places if self._inside and self.owned[place] is self._inside[-1]]
        for place in here or places:
            self.only_cast[place] = self.only_cast.get(place, True) and cast


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the present autocast dtype of a kind of device; None if autocast is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def compute_dtype(policy: Policy) -> torch.dtype:
    """Return the dtype of the products in a policy's forward pass; call it inside the context of the rollouts."""
    return autocast_dtype(policy.device) or policy.model.dtype
