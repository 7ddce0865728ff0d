"""Attention kernels compiled for an H100 on a machine without one; nothing is launched.

A CPU traces the package's own call of attention. The tensors of the traced graphs are then said to be on a CUDA device,
Inductor writes the source of the kernels, and Triton and its ptxas compile that for sm_90. No driver is asked: what
Inductor wants to know about the device is answered here. Needs Triton, which a CPU build of torch does not bring.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as upstream
from torch.utils._pytree import tree_map

from gspo_lightning.policy.attention import flex

__all__ = ["Kernel", "attention_kernels", "read_log", "traced", "versions"]

HEADS = (16, 8)
PROMPT, RESPONSES = 100, (60, 90, 1)
"""Tokens; sizes are symbols in the kernels, which do not depend on them."""
H100 = SimpleNamespace(
    type="cuda", index=0, name="NVIDIA H100 80GB HBM3", major=9, minor=0, cc=90, gcnArchName="", warp_size=32,
    multi_processor_count=132, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10, L2_cache_size=50 << 20, total_memory=81559 << 20,
)  # fmt: skip
Graph = tuple[torch.fx.GraphModule, Sequence[Any]]


@dataclass(frozen=True)
class Kernel:
    """Attention kernel compiled for sm_90."""

    part: str
    """``forward``, ``backward``, or ``no gradients``: the forward pass of sampling and of old log-probabilities."""
    blocks: str
    """Queries (M) and keys (N) that a block of threads works on at a time."""
    warps: int
    stages: int
    shared_bytes: int
    """Shared memory of a block of threads."""
    registers: int
    """Registers of a thread, of 255."""
    spill_bytes: int
    """Stores of a thread to local memory for want of registers, in the code: in a loop they are executed often."""
    wgmma: bool
    """True if products run on the tensor cores of a group of four warps, the fast ones of an H100."""
    seconds: float
    """Wall time of the compilation from Triton's source, on the machine that measured it."""


def read_log(log: str) -> dict[str, int]:
    """Return registers and spilled bytes from what ``ptxas -v`` says about one kernel.

    Raises:
        ValueError: it does not say them.
    """
    stores, registers = re.search(r"(\d+) bytes spill stores", log), re.search(r"Used (\d+) registers", log)
    if stores is None or registers is None:
        raise ValueError(f"ptxas does not say registers and spills: {log!r}")
    return {"registers": int(registers[1]), "spill_bytes": int(stores[1])}


def versions() -> dict[str, str]:
    """Return the versions of what compiles."""
    triton: Any = importlib.import_module("triton")
    return {"torch": torch.__version__, "triton": triton.__version__, "ptxas": triton.knobs.nvidia.ptxas.version}


def attention_kernels(size: int, dtype: str, options: Mapping[str, int] | None = None) -> Iterator[Kernel]:
    """Compile the kernels of a run, one after the other.

    Args:
        size: dimension of a head.
        dtype: of queries, keys and values: its name in torch.
        options: kernel options to try instead of the package's.
    """
    chosen = flex.kernel_options if options is None else lambda *_: options
    with mock.patch.object(flex, "kernel_options", chosen):
        graphs = traced(size, getattr(torch, dtype))
    with _pretended_h100():
        for part, graph in graphs.items():
            for name, source in _sources(*graph, backward=part == "backward"):
                if "_tem_" in name:  # of a template: attention itself, not the sums of rows before its backward pass
                    yield _compiled(part, name, source)


def traced(size: int, dtype: torch.dtype) -> dict[str, Graph]:
    """Return pass -> graph and its fake inputs, as the package's plan calls attention with and without gradients."""
    from torch._dynamo.backends.common import aot_autograd  # a second to import
    from torch._functorch import config
    from torch._inductor.decomposition import select_decomp_table

    found: dict[str, Graph] = {}

    def keeps(name: str) -> Callable[..., Any]:
        def keep(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            found[name] = graph, list(inputs)
            return graph.forward

        return keep

    backend = aot_autograd(
        fw_compiler=keeps("forward"), bw_compiler=keeps("backward"), inference_compiler=keeps("no gradients"),
        decompositions=select_decomp_table(),
    )  # fmt: skip
    starts = [PROMPT + sum(RESPONSES[:i]) for i in range(len(RESPONSES))]
    segments = [(0, PROMPT), *zip(starts, RESPONSES, strict=True)]
    tokens = PROMPT + sum(RESPONSES)
    plan = flex.FlexPlan(segments, [(PROMPT, sum(RESPONSES), 0, PROMPT)], PROMPT + max(RESPONSES), torch.device("cpu"))
    query, key, value = (torch.zeros(tokens, h, size, dtype=dtype, requires_grad=True) for h in (*HEADS, HEADS[1]))
    torch._dynamo.reset()
    with (
        mock.patch.object(upstream, "_validate_device", _nothing),  # which refuses gradients on a CPU
        mock.patch.object(flex, "kernel", return_value=flex.compiled(backend=backend)),
        config.patch(force_non_lazy_backward_lowering=True),
    ):
        plan.attend(0, query, key, value, size**-0.5)
        with torch.no_grad():
            plan.attend(0, query, key, value, size**-0.5)
    torch._dynamo.reset()
    return found


def _nothing(*_: Tensor) -> None:
    """A mock is more than ``torch.compile`` can look into."""


@contextlib.contextmanager
def _pretended_h100() -> Iterator[None]:
    """Answer what Inductor and Triton ask a CUDA device and its driver."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.utils import fresh_cache

    triton: Any = importlib.import_module("triton")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    driver = SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: 0,
        get_active_torch_device=lambda: torch.device("cuda", 0),
    )  # fmt: skip
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_device_properties", lambda *_: H100),
        (CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90)),
        (CudaInterface, "get_device_properties", staticmethod(lambda *_: H100)),
        (CudaInterface.Worker, "get_device_properties", staticmethod(lambda *_: H100)),
        (CudaInterface.Worker, "current_device", staticmethod(lambda: 0)),
        (scheduler, "has_triton", lambda *_: True),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        (triton.runtime.driver, "_active", driver),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(fresh_cache())  # seconds are those of a first run
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer))
        yield


def _sources(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, backward: bool) -> list[tuple[str, str]]:
    """Return the name and the Python source of each kernel that Inductor makes of a graph on a CUDA device."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    mode = next(x.fake_mode for x in inputs if isinstance(x, Tensor))  # type: ignore[attr-defined]

    def there(x: Any) -> Any:
        with mode:
            return (
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") if isinstance(x, Tensor) else x
            )

    for node in (n for m in graph.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes):
        if "val" in node.meta:
            node.meta["val"] = tree_map(there, node.meta["val"])
    found: list[tuple[str, str]] = []

    def define(_: Any, name: str, body: str, *rest: Any, **options: Any) -> None:
        namespace = SimpleNamespace(triton=lambda _, source, **__: found.append((name, source)))
        eval(body, {"async_compile": namespace})  # a call with the source as a string

    moved = [there(x) for x in inputs]
    lowering = GraphLowering(graph, example_inputs=moved, shape_env=mode.shape_env, is_backward=backward)
    with (
        mock.patch.object(PythonWrapperCodegen, "define_kernel", define),
        V.set_fake_mode(mode),
        DebugContext(),
        V.set_graph_handler(lowering),
    ):
        lowering.run(*moved)
        lowering.codegen()
    return found


def _compiled(part: str, name: str, source: str) -> Kernel:
    """Compile the source of a kernel for sm_90 and read what ptxas says about it."""
    triton: Any = importlib.import_module("triton")
    inductor: Any = importlib.import_module("torch._inductor.async_compile")
    made: list[Any] = []

    def compile_(*args: Any, **options: Any) -> Any:
        made.append(triton_compile(*args, **options))
        return made[-1]

    triton_compile = triton.compile
    autotuner: Any = inductor._load_triton_kernel_from_source(name, source)
    log, start = io.StringIO(), time.perf_counter()
    with (
        mock.patch.object(triton, "compile", compile_),
        mock.patch.object(triton.knobs.nvidia, "dump_ptxas_log", True),
        contextlib.redirect_stdout(log),
    ):
        autotuner._precompile_config(autotuner.configs[0])
    (binary,) = made
    blocks = dict(re.findall(r"(BLOCK_[MN]\d?) : tl.constexpr = (\d+)", source))
    return Kernel(
        part,
        blocks=" ".join(f"{name[6:]}={blocks[name]}" for name in sorted(blocks)),
        warps=binary.metadata.num_warps,
        stages=binary.metadata.num_stages,
        shared_bytes=binary.metadata.shared,
        wgmma="wgmma.mma_async" in binary.asm["ptx"],
        seconds=round(time.perf_counter() - start, 1),
        **read_log(log.getvalue()),
    )
