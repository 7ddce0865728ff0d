"""The device itself: a backend for PyTorch's ``privateuseone`` written in Python, over tensors on the CPU."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

from benchmarks.simulated.counts import Counts, package_line
from gspo_lightning.core.transfer import PINNED
from gspo_lightning.rollouts.sampler.decode_batch import CARRIERS

__all__ = ["COUNTS", "NAME", "Simulated", "backend", "move", "simulated", "within_thread"]

NAME = "simulated"
DEVICES = 2
COUNTS = Counts()
WAITS = {
    "_local_scalar_dense": "item",
    "is_nonzero": "item",
    "equal": "equal",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "bincount": "bincount",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
}
"""Operators whose result, or its size, the host has to wait for."""
FREE = {
    "view", "_unsafe_view", "expand", "transpose", "t", "permute", "slice", "select", "unsqueeze", "squeeze", "alias",
    "detach", "as_strided", "split", "split_with_sizes", "unbind", "lift_fresh", "view_as", "_reshape_alias",
    "diagonal", "unfold", "lift", "empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided", "is_pinned",
    "set_", "resize_", "is_same_size", "_has_compatible_shallow_copy_type", "record_stream",
}  # fmt: skip
"""Operators that run no kernel."""
MIXED = {"_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_", "set_", "lift_fresh", "detach"}
"""Operators that take tensors of both devices, each in its own way."""
WHOLE = {"repeat_interleave", "contiguous"}
"""Operators that CUDA has a kernel of its own for, though PyTorch can compose them of others."""
STAGED = 64 << 10
"""Bytes of pageable memory up to which an asynchronous copy to a device does not make the host wait."""
NORMS = (torch.rms_norm, torch.nn.functional.rms_norm)
ANSWERS = {"_local_scalar_dense", "is_nonzero", "equal"}
"""Operators that return a number of Python."""


class _Hook(_DummyPrivateUse1Hook):
    """Only where a simulated device is asked for is there an accelerator."""

    def is_available(self) -> bool:
        return _inside

    def has_primary_context(self, dev_id: int) -> bool:
        return _inside


class _Module(_DummyBackendModule):
    """``torch.simulated``."""

    def is_available(self) -> bool:
        return _inside

    def device_count(self) -> int:
        return DEVICES if _inside else 0

    def current_device(self) -> int:
        return getattr(_thread, "device", 0)

    def set_device(self, index: int) -> None:
        _thread.device = index

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_inside = False
_pinned: list[Tensor] = []
_MODULE = _Module()
_thread = threading.local()
"""The current device of a thread, 0 in a new one as on CUDA."""


@functools.cache
def backend() -> torch.device:
    """The first device; the first call makes PyTorch know them, for as long as the process lives."""
    _setup_privateuseone_for_python_backend(NAME, _MODULE, _Hook())
    return torch.device(NAME, 0)


class Simulated(Tensor):
    """A tensor on a simulated device; ``inner`` is the one on the CPU that has its values."""

    inner: Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Simulated], inner: Tensor, index: int = 0) -> Simulated:
        """Of the same sizes, strides and type, on the device of a number."""
        made: Simulated = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=torch.device(backend().type, index),
        )  # fmt: skip
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """The values, without counting the look at them."""
        return f"Simulated({self.inner!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["inner"], self.device.index

    @staticmethod
    def __tensor_unflatten__(parts: Mapping[str, Tensor], index: int, *_: Any) -> Simulated:
        return Simulated(parts["inner"], index)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Simulated) else x


def _wrapped(x: Any, index: int) -> Any:
    return Simulated(x, index) if isinstance(x, Tensor) else x


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _index(device: Any) -> int:
    found = torch.device(device).index
    return _MODULE.current_device() if found is None else found


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operator: decomposed, refused or computed, and counted."""
    name = func.overloadpacket.__name__
    leaves = tree_leaves((args, kwargs))
    ours = [x for x in leaves if isinstance(x, Simulated)]
    if ours and name not in WHOLE and func._can_decompose():
        return func.decompose(*args, **kwargs)
    if name == "_to_copy":
        return _to_copy(func, args[0], kwargs)
    target = kwargs.get("device")
    if not ours:
        return _made(func, name, args, kwargs) if _is_ours(target) else func(*args, **kwargs)
    if target is not None and not _is_ours(target):  # new_zeros(device="cpu"): the values are not looked at
        return func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    plain = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, Simulated)]
    _refuse_mixed(name, args, plain, {x.device.index for x in ours})
    _count(name, args, kwargs)
    if name == "_fused_sdp_choice":
        return 0
    return _computed(func, name, args, kwargs, ours[0].device.index)


def _to_copy(func: Any, source: Tensor, kwargs: dict[str, Any]) -> Any:
    """A cast, or a transfer."""
    target = kwargs.get("device")
    there = _is_ours(target) if target is not None else isinstance(source, Simulated)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    out = func(_inner(source), **rest)
    if there and isinstance(source, Simulated):
        COUNTS.launch("_to_copy")
    elif there:
        COUNTS.copy("to the device", waits=_waits(source, bool(kwargs.get("non_blocking"))))
    elif isinstance(source, Simulated):  # memory that is not pinned: the host waits whatever it was told
        COUNTS.copy("to the host", waits=True)
    if not there:
        return out
    return Simulated(out, source.device.index if target is None else _index(target))


def _waits(source: Tensor, asynchronous: bool) -> bool:
    """Whether the host waits for a copy to the device: always, but for pinned memory and what a driver keeps aside.

    CUDA copies at most 64 KiB of pageable memory into a buffer of its own, and returns; more it copies itself.
    """
    if not asynchronous:
        return True
    pinned = any(source.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in _pinned)
    return not pinned and source.numel() * source.element_size() > STAGED


def _pin(size: int) -> Tensor:
    """Memory of the host that a device reads by itself, kept so that no other takes its address."""
    _pinned.append(torch.empty(size, dtype=torch.uint8))
    return _pinned[-1]


def _made(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor that is made on the device."""
    if name not in FREE:
        COUNTS.launch(name)
    there = _index(kwargs["device"])
    return tree_map(lambda x: _wrapped(x, there), func(*args, **{**kwargs, "device": torch.device("cpu")}))


def _refuse_mixed(name: str, args: Any, plain: Sequence[Tensor], devices: set[int]) -> None:
    """Tensors of two devices in one operator, as CUDA refuses them: but numbers of the CPU, and indices from there."""
    if len(devices) > 1 and name != "copy_":
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} got {NAME} {sorted(devices)}")
    wrong = [tuple(x.shape) for x in plain if x.dim() > 0] if name not in MIXED else []
    if "index" in name and name in MIXED:
        if not isinstance(args[0], Simulated):
            wrong = [tuple(i.shape) for i in args[1] if isinstance(i, Simulated)]
        if len(args) > 2 and args[2].dim() > 0 and isinstance(args[2], Simulated) != isinstance(args[0], Simulated):
            wrong.append(tuple(args[2].shape))
    if wrong:
        raise RuntimeError(
            f"Expected all tensors to be on the same device: {name} got {NAME} and cpu {wrong} at {package_line()}"
        )


def _count(name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    if name in WAITS:
        COUNTS.sync(WAITS[name])
    elif name == "repeat_interleave" and kwargs.get("output_size") is None:
        COUNTS.sync(name)
    elif name == "copy_" and isinstance(args[0], Simulated) is not isinstance(args[1], Simulated):
        there = isinstance(args[0], Simulated)
        asynchronous = len(args) > 2 and bool(args[2])
        waits = _waits(args[1], asynchronous) if there else True
        COUNTS.copy("to the device" if there else "to the host", waits=waits)
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [i for i in args[1] if i is not None]
        if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
            COUNTS.sync("bool index")
        for _ in (i for i in indices if not isinstance(i, Simulated)):
            COUNTS.copy("to the device", waits=True)
    if name not in FREE:
        COUNTS.launch(name)


def _computed(func: Any, name: str, args: Any, kwargs: dict[str, Any], index: int) -> Any:
    """On the CPU."""
    cpu = torch.device("cpu")
    own_args = tree_map(lambda x: cpu if isinstance(x, torch.device) else _inner(x), args)
    own_kwargs = {k: cpu if k == "device" and v is not None else tree_map(_inner, v) for k, v in kwargs.items()}
    with torch._C._DisableAutocast():
        if name == "histc" and not own_args[0].is_floating_point():  # which CUDA counts, and a CPU does not
            out = func(own_args[0].float(), *own_args[1:], **own_kwargs).to(own_args[0].dtype)
        else:
            out = func(*own_args, **own_kwargs)
    if name in ANSWERS:
        return out
    if not isinstance(args[0] if args else None, Simulated) and name == "copy_":
        return args[0]
    found = tree_map(lambda x: _wrapped(x, index), out)
    if any(isinstance(x, (list, tuple)) for x in args):  # of several tensors: no views among them
        return found
    return return_and_correct_aliasing(func, args, kwargs, found)


class _Dispatch(TorchDispatchMode):
    """Also operators without a tensor of the device: those that make one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """What PyTorch does below every dispatch: ``torch.tensor(..., device=)`` fills a CPU tensor and copies it over."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_ours(kwargs.get("device")):
            if isinstance(args[0], Simulated):
                return args[0]
            there = kwargs.pop("device")
            return func(*args, **kwargs).to(there)
        if func in NORMS and isinstance(args[0], Simulated) and not torch.is_grad_enabled():
            norm = (args[0].inner, *tree_map(_inner, args[1:]))
            COUNTS.launch("_fused_rms_norm")  # a kernel of CUDA; the CPU composes it of others
            return Simulated(func(*norm, **tree_map(_inner, kwargs)), args[0].device.index)
        if func is Tensor.tolist and isinstance(args[0], Simulated):
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor and isinstance(args[0], Simulated):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        return func(*args, **kwargs)


class _Carried:
    """An asynchronous copy: whoever reads it before further work has been launched waits for the newest of it.

    A thread whose current device is another one is an error: there go events, and kernels that are not PyTorch's.
    """

    def __init__(self, value: Tensor) -> None:
        if (here := _MODULE.current_device()) != value.device.index:
            raise RuntimeError(f"{value.device} is worked on while {NAME}:{here} is current, at {package_line()}")
        self._value, self._launched = _inner(value).clone(), COUNTS.launches.total()
        COUNTS.copy("to the host", waits=False)

    def read(self) -> int:
        if COUNTS.launches.total() == self._launched:
            COUNTS.sync("copy to the host")
        return int(self._value)


@contextlib.contextmanager
def _no_inference_mode() -> Iterator[None]:
    """``torch.inference_mode`` is ``torch.no_grad``: wrappers made outside it cannot be viewed inside."""
    kind = torch.inference_mode

    def enter(self: Any) -> None:
        self.plain = torch.no_grad()
        self.plain.__enter__()

    def leave(self: Any, *error: Any) -> None:
        self.plain.__exit__(*error)

    with mock.patch.object(kind, "__enter__", enter), mock.patch.object(kind, "__exit__", leave):
        yield


@contextlib.contextmanager
def simulated() -> Iterator[Counts]:
    """There are simulated devices in here; yields what they count together, from 0."""
    global _inside
    backend()
    COUNTS.clear()
    _inside = True
    try:
        with (
            mock.patch.dict(CARRIERS, {NAME: _Carried}),
            mock.patch.dict(PINNED, {NAME: lambda size: _pin(size)}),
            _no_inference_mode(),
            _Dispatch(),  # type: ignore[no-untyped-call]
            _Functions(),
        ):
            yield COUNTS
    finally:
        _inside = False
        _pinned.clear()


@contextlib.contextmanager
def within_thread() -> Iterator[None]:
    """The devices of :func:`simulated` in another thread: modes of PyTorch are a thread's own."""
    with _Dispatch(), _Functions():  # type: ignore[no-untyped-call]
        yield


def move(module: nn.Module, index: int = 0) -> None:
    """Parameters and buffers go to a device, in place; tied ones stay tied. Gradients are lost.

    ``Module.to`` changes the data of parameters, which a wrapper cannot follow.
    """
    known: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                fresh = nn.Parameter(Simulated(parameter.detach(), index), parameter.requires_grad)
                part._parameters[name] = known.setdefault(id(parameter), fresh)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else Simulated(buffer.detach(), index)
