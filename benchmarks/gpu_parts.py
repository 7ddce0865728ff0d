"""The parts of :mod:`benchmarks.gpu_check`."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.clock import Phases
from benchmarks.memory import frozen_groups, peak_memory, plain_loss, reset_peak
from benchmarks.models import MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours, recorded
from benchmarks.parity import GRADIENT, LOSS, compare_gradients, gradient_of, perturb
from benchmarks.peers.trl import TRL, as_batch, trl_version
from benchmarks.workloads import Workload
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.attention import check_attention

__all__ = [
    "Bench",
    "check_kernels",
    "check_noise",
    "check_parity",
    "measure_memory",
]

QWEN3: dict[str, Shape] = {
    "0.6b": Shape(151_936, 1024, 28, 16, 8, 128, 3072),
    "1.7b": Shape(151_936, 2048, 28, 16, 8, 128, 6144),
    "8b": Shape(151_936, 4096, 36, 32, 8, 128, 12_288),
    "30b-a3b, 4 layers": Shape(151_936, 2048, 4, 32, 4, 128, 768, experts=128, experts_per_token=8),
}
WORK: dict[str, Workload] = {
    "equal": Workload(8, 8, (64, 128), 1024, 1024, sigma=0.0),
    "skewed": Workload(8, 8, (64, 128), 400, 1024),
}
TOY_WORK: dict[str, Workload] = {
    "equal": Workload(4, 4, (4, 8), 8, 8, sigma=0.0),
    "skewed": Workload(4, 4, (4, 8), 6, 16),
}
CLIP = 3e-4
"""The narrower side of the paper's clip range: noise is judged against it."""


@dataclass(frozen=True)
class Bench:
    """Where and at which sizes to measure."""

    device: torch.device
    toy: bool
    peer: bool = False
    """Time steps of TRL as well, if it is installed."""

    @classmethod
    def on(cls, *, cuda: bool, peer: bool = False) -> Bench:
        """The CUDA device at full size, or the CPU at toy size."""
        return cls(torch.device("cuda" if cuda else "cpu"), not cuda, peer)

    def shape(self, name: str) -> Shape:
        """A Qwen3 shape, or a toy."""
        return MODELS["moe" if QWEN3[name].experts else "1m"] if self.toy else QWEN3[name]

    def work(self, name: str) -> Workload:
        """A workload, or a toy."""
        return (TOY_WORK if self.toy else WORK)[name]

    def model(self, shape: Shape, lora: LoRA | None = None) -> PreTrainedModel:
        """Random float32 weights made on the device: on a CPU a billion of them take minutes."""
        with self.device:
            model = build_model(shape, context=4096).to(self.device)
            if lora:
                add_adapters(model, lora, 0)
        return model

    @property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        """bf16-mixed."""
        return functools.partial(torch.autocast, self.device.type, dtype=torch.bfloat16)

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def peak(self, into: dict[str, Any], name: str, *, extra: bool = True) -> Iterator[None]:
        """Write the peak memory of what happens inside, MiB, under ``name``; ``extra``: above what was there before."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if extra else 0
            yield
            torch.cuda.synchronize()
            into[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
        else:
            reset_peak()
            at_start = peak_memory() if extra else 0.0
            yield
            into[name] = peak_memory() - at_start


def check_kernels(bench: Bench, dtype: torch.dtype, sizes: Sequence[int]) -> dict[str, Any]:
    """Whether packed attention does on this device what its definition says, by size of a head; else the reason.

    Raises:
        RuntimeError: it does not; training would pad its rows.
    """
    found: dict[str, Any] = {}
    for size in (16,) if bench.toy else sizes:
        started = time.monotonic()
        try:
            check_attention(bench.device, (16, 8), size, dtype)
            found[f"head {size}"] = "ok"
        except Exception as error:  # of any kind: compilers fail in many ways
            found[f"head {size}"] = repr(error)
        found[f"head {size}, s"] = time.monotonic() - started
    if not any(value == "ok" for value in found.values()):
        raise RuntimeError(f"no size of a head has a kernel: {found}")
    return found


def check_parity(bench: Bench) -> dict[str, Any]:
    """Float32 loss and gradient beside TRL, if installed, and the plain formula; bf16 for information."""
    work = Workload(4, 8, (8, 24), 16, 64)
    shape = MODELS["1m"]
    first, tokenizer = bench.model(shape), word_tokenizer(shape.vocabulary)
    found: dict[str, Any] = {}
    if trl_version() is not None:
        ours = Ours(copy.deepcopy(first), tokenizer, work, max_tokens=1024)
        trl = TRL(copy.deepcopy(first), tokenizer, work, cpu=bench.toy)
        batch = trl.rollout()
        perturb(batch)
        case = compare_gradients("1m", "parity", ours, trl, batch)
        found["trl"] = {"loss": case.loss, "gradient": case.gradient, "clipped": case.clipped, "ok": case.ok}
    else:
        found["trl"] = "absent"
    found["plain"] = _beside_plain(bench, first, tokenizer, work, nullcontext, (CLIP, 4e-4))
    # a wide clip range: which sequences the narrow one clips is decided by the noise of bf16
    found["plain_bf16"] = _beside_plain(bench, first, tokenizer, work, bench.autocast, (0.2, 0.2))
    found["ok"] = found["plain"]["ok"] and (found["trl"] == "absent" or found["trl"]["ok"])
    return found


def _beside_plain(
    bench: Bench,
    first: PreTrainedModel,
    tokenizer: Any,
    work: Workload,
    context: Callable[[], Any],
    clip: tuple[float, float],
) -> dict[str, Any]:
    """The package's path against all logits, log-softmax and gather on padded rows, on the package's own rollouts."""
    ours = Ours(copy.deepcopy(first), tokenizer, work, max_tokens=1024)
    groups = ours.generate()
    for i, rollout in enumerate(r for g in groups for r in g):
        rollout.reward, rollout.advantage = 0.0, (-1.0) ** i
    batch = as_batch(groups)
    perturb(batch)
    for i, rollout in enumerate(r for g in groups for r in g):
        rollout.logprobs = batch["old_per_token_logps"][i, : len(rollout.token_ids)].clone()
    plain = copy.deepcopy(first)
    with context():
        loss = plain_loss(plain, {k: v.to(bench.device) for k, v in batch.items()}, clip)
    loss.backward()
    loss = loss.detach()
    ours.context, ours.objective = context, GSPO(*clip)
    sums = MetricSums()
    (mini_batch,) = recorded(ours.cut(groups, 1))
    ours.accumulate(mini_batch, Phases(), sums)
    total = sums.reduce()[0]["loss"][0]
    mine, other = gradient_of(ours.policy.model), gradient_of(plain)
    difference, gradient = abs(total - float(loss)), float((mine - other).norm() / other.norm())
    return {"loss": difference, "gradient": gradient, "ok": difference <= LOSS and gradient <= GRADIENT}


def check_noise(bench: Bench) -> dict[str, Any]:
    """The mean log-ratio of unchanged weights between two ways to compute it in bf16, beside the clip range."""
    shape, work = bench.shape("0.6b"), bench.work("skewed")
    ours = Ours(bench.model(shape), word_tokenizer(shape.vocabulary), work, context=bench.autocast)
    groups = ours.generate()
    rows = [r for g in groups for r in g]
    sampled = torch.stack([r.logprobs.double().mean() for r in rows if r.logprobs is not None])
    longest = int(work.lengths.max()) + work.prompt_tokens[1]
    trained = _row_means(ours, groups, 16 * longest)
    ours.policy.eval()
    pairs = {
        "sampler_and_training": sampled - trained,
        "training_cut_differently": _row_means(ours, groups, 2 * longest) - trained,
        "training_twice": _row_means(ours, groups, 16 * longest) - trained,
    }
    ours.context = nullcontext
    pairs["float32_and_bf16"] = _row_means(ours, groups, 16 * longest) - trained
    return {
        name: {
            "largest": float(d.abs().max()),
            "mean": float(d.abs().mean()),
            "outside_clip": float((d.abs() > CLIP).double().mean()),
            "below_a_tenth_of_the_clip_range": bool(d.abs().max() < CLIP / 10),
        }
        for name, d in pairs.items()
    }


def _row_means(ours: Ours, groups: list[list[Rollout]], max_tokens: int) -> Tensor:
    """[N] float64 mean log-probability of each response, in the order of ``groups``, whatever the cut.

    ``logprobs`` travel with a row through the packing: here they carry its number.
    """
    numbers = itertools.count()

    def tag(r: Rollout) -> Rollout:
        return replace(r, reward=0.0, logprobs=torch.full(r.token_ids.shape, float(next(numbers))))

    tagged = [[tag(r) for r in g] for g in groups]
    means = torch.zeros(sum(len(g) for g in groups), dtype=torch.float64)
    ours.max_tokens = max_tokens
    (mini_batch,) = ours.cut(tagged, 1)
    for part in mini_batch.micro_batches:
        with torch.no_grad(), ours.context():
            logprobs = ours.policy(part.to(ours.policy.device), 1.0)[0].double().cpu()
        mask = part.response_mask
        if part.behaviour_logprobs is None:
            raise RuntimeError("a micro-batch lost the log-probabilities of its rollouts")
        means[part.behaviour_logprobs[:, 0].long()] = (logprobs * mask).sum(1) / mask.sum(1)
    return means


def measure_memory(bench: Bench, model: str) -> dict[str, Any]:
    """Extra peak of one mini-batch, forward and backward in bf16-mixed, at the same micro-batch on all sides; MiB."""
    shape = bench.shape(model)
    work = Workload(2, 4, (4, 8), 6, 16) if bench.toy else Workload(2, 8, (64, 128), 400, 1024)
    tokenizer, groups = word_tokenizer(shape.vocabulary), frozen_groups(work, shape.vocabulary)
    batch = as_batch(groups)
    found: dict[str, Any] = {"rows": work.rows, "response_tokens": work.response_tokens}
    ours = Ours(bench.model(shape), tokenizer, work, max_tokens=1 << 20, context=bench.autocast)
    ours.policy.train()
    (mini_batch,) = recorded(ours.pack(groups, mini_batches=1))
    with bench.peak(found, "ours"):
        ours.accumulate(mini_batch, Phases(), MetricSums())
    del ours
    batch = {k: v.to(bench.device) for k, v in batch.items()}
    plain = bench.model(shape)
    with bench.peak(found, "plain logits + log_softmax"):
        with bench.autocast():
            loss = plain_loss(plain, batch)
        loss.backward()
    del plain, loss
    if trl_version() is None:
        return found | {"trl": "absent"}
    for name, rows in (("TRL, same micro-batch", work.rows), ("TRL, one row at a time", 1)):
        trl = TRL(bench.model(shape), tokenizer, work, cpu=bench.toy, bf16=True)
        with bench.peak(found, name):
            trl.accumulate(batch, rows)
        del trl
    return found
