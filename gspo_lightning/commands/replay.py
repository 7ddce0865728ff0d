"""``gspo replay``: repeat a dumped update and report its first NaN, or its metrics."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.escape import say

if TYPE_CHECKING:
    from torch import Tensor

    from gspo_lightning.core.types import MicroBatch
    from gspo_lightning.loop.update.dump import Dump

SHOWN = ("loss", "optim/gradient_norm", "ratio/log_sequence_std", "clip/tokens", "policy/entropy")
"""Metrics printed for a finite update."""


def main(argv: Sequence[str]) -> int:
    """Replay a dump and print the findings; the run folder is not needed.

    Raises:
        UserError: the file is not a dump, or its objective is not registered.
    """
    parser = argparse.ArgumentParser("gspo replay", description="Repeat an update from its dump.")
    parser.add_argument("dump", type=Path, help="a file from the folder dumps/ of a run")
    parser.add_argument("--plugins", nargs="*", default=[], help="files, folders or modules to import first")
    parser.add_argument("--trust_remote_code", action="store_true", help="run Python code that the model's repository "
                        "ships; no dump decides that")  # fmt: skip
    options = parser.parse_args(list(argv))
    from gspo_lightning.core.registry import import_plugins
    from gspo_lightning.loop.update.dump import Dump

    import_plugins(options.plugins)
    dump = Dump.read(options.dump, options.trust_remote_code)
    say(f"update {dump.update}: " + ", ".join(f"{name} {value:g}" for name, value in dump.values.items()))
    say(f"draws: seed {dump.rng['seed']}, iteration {dump.rng['iteration']}")
    lines, values = replay(dump)
    say("\n".join(lines) if lines else "not reproduced: everything is finite here")
    if not lines:
        say("done again: " + ", ".join(f"{name} {value:g}" for name, value in values.items()))
    return 0


def replay(dump: Dump) -> tuple[list[str], dict[str, float]]:
    """Return the non-finite values in order of computation, one line each, and the metrics of the repeated update.

    With several ranks a dump has the rows of one rank only, and so do its metrics.
    """
    import torch

    from gspo_lightning.core.errors import UserError
    from gspo_lightning.core.registry import component
    from gspo_lightning.loop.metrics.sums import MetricSums
    from gspo_lightning.loop.metrics.update import update_scalars
    from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
    from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
    from gspo_lightning.loop.update.router_loss import load_balance
    from gspo_lightning.policy.attention.rope import pin_rope
    from gspo_lightning.policy.load.loading import load_policy
    from gspo_lightning.policy.routing import hook_routers

    objective = component("objectives", dump.objective["class"])(**dump.objective["settings"])
    if getattr(objective, "distill_exact", False) and objective.distill_coef > 0:
        raise UserError(
            "dump",
            "is of an update with distill_exact, which needs the teacher's whole distribution, and no dump holds that",
            fix="set distill_exact: false to have updates that can be replayed",
        )
    policy = load_policy(dump.model)
    policy.model.load_state_dict(dump.weights)
    if dump.longest:
        pin_rope(policy.model, dump.longest)
    policy.train()
    replayed = any(part.routes is not None for part in dump.mini_batch.micro_batches)
    if replayed or dump.router_aux_loss_coef > 0:
        policy.routing = hook_routers(policy.backbone, "R2" if replayed else "off")
    findings = [f"weight {name}" for name, weight in dump.weights.items() if not _finite(weight)]
    parts = dump.mini_batch.micro_batches
    terms = LossTerms(policy, CachedLogProbs(), objective, dump.temperature)
    denominator = mini_batch_count(objective, parts)
    balance = load_balance(dump.router_aux_loss_coef, policy, parts, dump.temperature)
    sums = MetricSums()
    gradient = {name: torch.zeros_like(p) for name, p in policy.named_parameters()}
    for number, (part, segments) in enumerate(zip(parts, dump.segments, strict=True)):
        findings += _rows(dump, number, part, "old log-probabilities", part.old_logprobs)
        findings += _rows(dump, number, part, "advantages", part.advantages)
        findings += _rows(dump, number, part, "log-probabilities of the run", dump.logprobs[number])
        policy.zero_grad(set_to_none=True)
        loss = micro_batch_loss(
            part, dataclasses.replace(terms, segments=partial(_given, segments)),
            denominator=denominator, sums=sums, balance=balance,
        )  # fmt: skip
        if not bool(torch.isfinite(loss)):
            findings.append(f"micro-batch {number}: loss {float(loss)}")
        loss.backward()
        bad = [name for name, p in policy.named_parameters() if p.grad is not None and not _finite(p.grad)]
        if bad:
            findings.append(f"micro-batch {number}: gradients of {len(bad)} weights, first {bad[0]}")
        for name, p in policy.named_parameters():
            gradient[name] += p.grad if p.grad is not None else 0.0
    pairs, _, _ = sums.reduce()
    metrics = update_scalars(pairs)
    metrics["optim/gradient_norm"] = float(torch.nn.utils.get_total_norm(list(gradient.values())))
    return findings, {name: metrics[name] for name in SHOWN if name in metrics}


def _given(segments: Tensor | None, _: MicroBatch) -> Tensor | None:
    return segments


def _finite(value: Tensor) -> bool:
    import torch

    return bool(torch.isfinite(value).all())


def _rows(dump: Dump, number: int, part: MicroBatch, what: str, values: Tensor | None) -> list[str]:
    """Return a line per row of a micro-batch in which a tensor is not finite at a response position."""
    import torch

    from gspo_lightning.policy.packing.rows import row_hash

    if values is None:
        return []
    not_finite = ~torch.isfinite(values)
    if not_finite.dim() == 2:  # by token; otherwise by row
        not_finite = (not_finite & part.response_mask).any(dim=1)
    lines = []
    for row in not_finite.nonzero().flatten().tolist():
        prompt_length = int(part.prompt_lengths[row])
        length = prompt_length + int(part.response_lengths[row])
        ids = part.input_ids[row, :length]
        name = _name(dump.rewards, row_hash(ids[:prompt_length].tolist(), ids[prompt_length:]))
        lines.append(f"micro-batch {number}, row {row}{name}: {what}")
    return lines


def _name(rewards: dict[str, Any], row: str) -> str:
    """Return the name and the reward of the response with this hash of its row; empty for an unknown one."""
    for name, (key, reward) in rewards.items():
        if key == row:
            return f" ({name}, reward {reward})"
    return ""
