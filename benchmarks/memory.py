"""Extra peak memory of one mini-batch: forward and backward, one forked process per case.

Extra is what the resident set grows by above the loaded model and the data; gradients are part of it on every side. A
fork server that has only imported things is forked for each case, so that no case finds memory that another one freed.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.clock import Phases
from benchmarks.models import MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours, recorded
from benchmarks.peers.trl import TRL, as_batch
from benchmarks.workloads import Workload, reward
from gspo_lightning.core.types import FinishReason, Rollout
from gspo_lightning.loop.metrics.sums import MetricSums

__all__ = [
    "CASES",
    "MemoryCase",
    "frozen_groups",
    "measure",
    "peak_memory",
    "plain_loss",
    "quiet_allocator",
    "reset_peak",
    "run_memory",
]

MINI_BATCH = Workload(2, 8, (32, 32), 120, 320)
"""16 rows, 2,500 response tokens."""
OURS, TRL_SAME, TRL_ONE, PLAIN = "ours", "TRL, same micro-batch", "TRL, one row at a time", "plain logits + log_softmax"
_M_MMAP_THRESHOLD, _PR_SET_THP_DISABLE = -3, 41
CASES = (OURS, TRL_SAME, TRL_ONE, PLAIN)


@dataclass
class MemoryCase:
    """Extra peak memory of one way to train on the mini-batch."""

    case: str
    vocabulary: int
    rows: int
    """Per forward."""
    response_tokens: int
    mebibytes: float


def run_memory(
    shape: Shape = MODELS["head"], work: Workload = MINI_BATCH, cases: tuple[str, ...] = CASES
) -> list[MemoryCase]:
    """Every case in its own process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.memory", "trl.trainer.grpo_trainer"])
    found = []
    for case in cases:
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(case, shape, work, send))
        child.start()
        send.close()
        try:
            found.append(receive.recv())
        except EOFError as error:
            raise RuntimeError(f"the process that measured {case!r} ended early (out of memory?)") from error
        finally:
            child.join()
    return found


def _child(case: str, shape: Shape, work: Workload, send: Any) -> None:
    quiet_allocator()
    send.send(measure(case, shape, work))


def quiet_allocator() -> None:
    """Let the resident set of this process follow its tensors."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 18)  # large tensors go back to the system when freed, on every side
    libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)  # huge pages come and go with the load of the machine


def measure(case: str, shape: Shape, work: Workload) -> MemoryCase:
    """One case, in this process."""
    torch.set_num_threads(1)
    model, tokenizer = build_model(shape), word_tokenizer(shape.vocabulary)
    groups = frozen_groups(work, shape.vocabulary)
    rows = 1 if case == TRL_ONE else work.rows
    if case == OURS:
        run = _ours(model, tokenizer, work, groups)
    elif case == PLAIN:
        run = _plain(model, as_batch(groups))
    else:
        run = _trl(model, tokenizer, work, groups, rows)
    reset_peak()
    before = peak_memory()
    run()
    return MemoryCase(case, shape.vocabulary, rows, work.response_tokens, peak_memory() - before)


def reset_peak() -> None:
    """Let the peak of this process's resident set start from what is in use now (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator kept would hide what comes next
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Largest resident set of this process since :func:`reset_peak`, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def frozen_groups(work: Workload, vocabulary: int) -> list[list[Rollout]]:
    """Random responses of the scheduled lengths, with old log-probabilities near those of a random model."""
    generator = torch.Generator().manual_seed(0)
    prompts = work.make_prompts(vocabulary)
    groups: list[list[Rollout]] = []
    for prompt, lengths in zip(prompts, work.lengths.tolist(), strict=True):
        groups.append([])
        for k, n in enumerate(lengths):
            ids = torch.randint(3, vocabulary, (n,), generator=generator)
            mask = torch.ones(n, dtype=torch.bool)
            old = torch.full((n,), -torch.tensor(float(vocabulary)).log().item())
            rollout = Rollout(prompt, k, ids, old, mask, FinishReason.STOP, 0, reward=reward(ids.tolist()))
            rollout.advantage = float(k % 2) - 0.5
            groups[-1].append(rollout)
    return groups


def _ours(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, work: Workload, groups: list[list[Rollout]]
) -> Callable[[], None]:
    ours = Ours(model, tokenizer, work, max_tokens=1 << 20)  # all rows in one micro-batch
    ours.policy.train()
    (batch,) = recorded(ours.pack(groups, mini_batches=1))
    return lambda: ours.accumulate(batch, Phases(), MetricSums())


def _trl(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, work: Workload, groups: list[list[Rollout]], rows: int
) -> Callable[[], None]:
    trl = TRL(model, tokenizer, work)
    batch = as_batch(groups)
    return lambda: trl.accumulate(batch, rows)


def _plain(model: PreTrainedModel, batch: dict[str, Tensor]) -> Callable[[], None]:
    return lambda: plain_loss(model, batch).backward()


def plain_loss(model: nn.Module, batch: dict[str, Tensor], clip: tuple[float, float] = (3e-4, 4e-4)) -> Tensor:
    """GSPO in the few lines that everybody writes first: all logits of the responses, log-softmax, gather."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    mask, width = batch["completion_mask"], batch["completion_ids"].shape[1]
    logits = model(
        input_ids=ids, attention_mask=attention, position_ids=positions, logits_to_keep=width + 1, use_cache=False
    ).logits[:, :-1]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
    ratio = (((chosen - batch["old_per_token_logps"]) * mask).sum(1) / mask.sum(1)).exp()
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    return -torch.min(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
