"""Parts of :mod:`benchmarks.gpu_check` that time one thing in two ways: pieces of the head, blocks without a mask."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from benchmarks.clock import Phases
from benchmarks.gpu_parts import Bench
from benchmarks.memory import frozen_groups
from benchmarks.models import word_tokenizer
from benchmarks.ours import Ours, recorded
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.policy.attention.flex import FlexPlan, kernel
from gspo_lightning.policy.kernels.fused import kernels_for
from gspo_lightning.policy.logprobs import CHUNK_LOGITS, DEFINITION, token_logprobs

__all__ = ["measure_compiled", "measure_head", "measure_logprobs", "measure_masks"]

REPEATS = 5


def _seconds(bench: Bench, work: Callable[[], object]) -> float:
    """The quickest of some, after one that compiles."""
    work()
    found = []
    for _ in range(REPEATS):
        bench.sync()
        start = time.perf_counter()
        work()
        bench.sync()
        found.append(time.perf_counter() - start)
    return min(found)


def measure_head(bench: Bench) -> dict[str, Any]:
    """Forward and backward of the head under bf16-mixed: cast once against cast in every piece; MiB and seconds."""
    rows, width, vocabulary = (64, 16, 100) if bench.toy else (16_384, 2048, 151_936)
    with bench.device:
        head = nn.Linear(width, vocabulary, bias=False)
        hidden = torch.randn(rows, width, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(vocabulary, (rows,))
    found: dict[str, Any] = {}

    def step(form: Callable[[Tensor], Tensor], size: int) -> None:
        chunk = max(16, size // (4 * vocabulary))
        with bench.autocast():
            chosen, entropy = token_logprobs(form, hidden, targets, chunk=chunk)
        torch.autograd.grad(chosen.sum() + entropy.sum(), [hidden, head.weight])

    forms: dict[str, Callable[[Tensor], Tensor]] = {"cast once": head, "cast in each piece": lambda x: head(x)}
    for name, form in forms.items():
        for size in (256 << 20, CHUNK_LOGITS[bench.toy]):
            key = f"{name}, {size >> 20} MiB"
            found[f"seconds, {key}"] = _seconds(bench, lambda f=form, s=size: step(f, s))  # type: ignore[misc]
            with bench.peak(found, f"MiB, {key}"):
                step(form, size)
    return found | _liger(bench, head, hidden, targets)


def _liger(bench: Bench, head: nn.Linear, hidden: Tensor, targets: Tensor) -> dict[str, Any]:
    """The same with Liger's fused kernel, which returns log-probabilities without the entropy."""
    if bench.toy or importlib.util.find_spec("liger_kernel") is None:
        return {"liger": "absent, or no CUDA"}
    kernels: Any = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")

    found: dict[str, Any] = {}

    def step() -> None:
        weight = head.weight.to(torch.bfloat16)
        # a sum: per token, its backward pass has no weights of the tokens
        loss = kernels.LigerFusedLinearCrossEntropyFunction.apply(
            hidden, weight, targets, None, None, -100, 0.0, 0.0, "sum"
        )
        loss = loss[0] if isinstance(loss, tuple) else loss
        torch.autograd.grad(loss, [hidden, head.weight])

    try:
        found["seconds, liger"] = _seconds(bench, step)
        with bench.peak(found, "MiB, liger"):
            step()
    except Exception as error:  # of any kind: it is another package's
        found["liger"] = repr(error)[:300]
    return found


def measure_logprobs(bench: Bench) -> dict[str, Any]:
    """Seconds of log-probabilities and of their gradient, by the kernels and by their definition, on bf16 logits.

    ``gap`` is the largest difference, in nats and relative to the largest gradient.
    """
    rows, vocabulary = (8, 500) if bench.toy else (1766, 151_936)
    with bench.device:
        logits = (4 * torch.randn(rows, vocabulary)).bfloat16()
        targets, weights = torch.randint(vocabulary, (rows,)), torch.randn(2, rows)
    kernels = kernels_for(logits, DEFINITION)
    found: dict[str, Any] = {"kernels": kernels is not None, "bytes": logits.numel() * logits.element_size()}
    measured: list[list[Tensor]] = []
    forms = {"definition": DEFINITION} | ({"kernels": (kernels.measure, kernels.differentiate)} if kernels else {})
    for name, (measure, differentiate) in forms.items():
        with bench.device:
            values, gradient = [torch.empty(rows) for _ in range(3)], torch.empty_like(logits)

        def forward(form: Any = measure, out: Sequence[Tensor] = values) -> None:
            form(logits, targets, 0.8, *out)

        def backward(form: Any = differentiate, out: Sequence[Tensor] = values, into: Tensor = gradient) -> None:
            form(into, logits, targets, 0.8, out[2], out[1], *weights)

        found[f"{name}, forward s"] = _seconds(bench, forward)
        found[f"{name}, backward s"] = _seconds(bench, backward)
        measured.append([*values, gradient])
    if kernels is not None:
        gaps = [float((a.float() - b.float()).abs().max() / (b.float().abs().max() if b.dim() > 1 else 1.0))
                for a, b in zip(*measured, strict=True)]  # fmt: skip
        found["gap"] = dict(zip(("log-probability", "entropy", "log Z", "gradient"), gaps, strict=True))
        found["ok"] = max(gaps[:3]) < 1e-3 and gaps[3] < 0.02
    return found


def measure_compiled(bench: Bench) -> dict[str, Any]:
    """Forward and backward of a mini-batch: eager, norms and MLPs compiled, layers compiled, and Liger's kernels.

    ``gap`` is the relative difference of the gradient.
    """
    shape, work = bench.shape("1.7b"), bench.work("skewed")
    tokenizer, groups, found = word_tokenizer(shape.vocabulary), frozen_groups(work, shape.vocabulary), dict[str, Any]()
    ours = Ours(bench.model(shape), tokenizer, work, max_tokens=8192, context=bench.autocast)
    ours.policy.train()
    batch = recorded(ours.pack(groups))[0]
    model = ours.policy.model

    def step() -> None:
        ours.optimizer.zero_grad(set_to_none=True)
        ours.accumulate(batch, Phases(), MetricSums())

    def norms_and_mlps() -> None:
        for module in model.modules():
            if type(module).__name__.endswith(("RMSNorm", "MLP")):
                module.compile(dynamic=True)

    def layers() -> None:
        for module in model.modules():
            module._compiled_call_impl = None
        for layer in model.get_submodule("model.layers").children():
            layer.compile(dynamic=True)

    def liger() -> None:
        for module in model.modules():
            module._compiled_call_impl = None
        patches: Any = importlib.import_module("liger_kernel.transformers")
        patches.apply_liger_kernel_to_qwen3(
            rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False, model=model
        )

    plain: list[Tensor] = []
    forms: dict[str, Callable[[], None]] = {"eager": lambda: None, "norms and MLPs": norms_and_mlps, "layers": layers}
    if not bench.toy and importlib.util.find_spec("liger_kernel") is not None:
        forms["liger"] = liger  # the last one: it replaces classes
    for name, change in forms.items():
        started = time.perf_counter()
        try:
            change()
            step()
            bench.sync()
            found[f"{name}, first s"] = time.perf_counter() - started
            found[f"{name}, s"] = _seconds(bench, step)
            with bench.peak(found, f"{name}, MiB"):
                step()
        except Exception as error:  # of any kind: compilers fail in many ways
            found[name] = repr(error)[-600:]
            continue
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        plain = plain or gradients
        gaps = [float((a - b).norm()) for a, b in zip(gradients, plain, strict=True)]
        norms = [float(b.norm()) for b in plain]
        found[f"{name}, gap"] = sum(g * g for g in gaps) ** 0.5 / sum(n * n for n in norms) ** 0.5
    return found


def measure_masks(bench: Bench) -> dict[str, Any]:
    """Forward and backward of packed attention with and without a list of blocks that need no mask; seconds."""
    prompt, response, count, heads, size = (40, 300, 4, 2, 16) if bench.toy else (512, 2048, 8, 16, 128)
    segments = [(0, prompt), *((prompt + i * response, response) for i in range(count))]
    tokens = prompt + count * response
    plan = FlexPlan(segments, [(prompt, count * response, 0, prompt)], prompt + response, bench.device)
    listed = plan.mask
    assert listed.full_kv_num_blocks is not None
    full, partial = int(listed.full_kv_num_blocks.sum()), int(listed.kv_num_blocks.sum())
    found: dict[str, Any] = {"share of blocks without a mask": full / (full + partial)}
    with bench.device:
        inputs = [torch.randn(tokens, heads, size, dtype=torch.bfloat16) for _ in range(3)]
    trained = not bench.toy  # FlexAttention has no backward pass on a CPU
    for tensor in inputs:
        tensor.requires_grad_(trained)
    query, key, value = inputs
    values = []
    for name, mask in (("with full blocks", listed), ("every block masked", _all_masked(listed))):
        plan.mask = mask

        def step() -> Tensor:
            out = plan.attend(0, query, key, value, 0.1)
            if trained:
                torch.autograd.grad(out.sum(), inputs)
            return out

        values.append(step().detach().float())
        found[f"seconds, {name}"] = _seconds(bench, step)
        kernel.cache_clear()
    gap = float((values[0] - values[1]).abs().max())
    assert gap < 0.02, f"blocks without a mask change values by {gap:.2g}"
    return found | {"largest difference": gap}


def _all_masked(mask: BlockMask) -> BlockMask:
    """The same blocks, all of them with the mask."""
    dense = mask.to_dense()[0, 0].bool()
    order = dense.int().argsort(dim=1, descending=True, stable=True).int()
    found: BlockMask = BlockMask.from_kv_blocks(
        dense.sum(1).int()[None, None], order[None, None], BLOCK_SIZE=mask.BLOCK_SIZE, mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
    )  # fmt: skip
    return found
