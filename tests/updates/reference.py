"""The updates of a cell in float64, from the responses that its run recorded and the weights before each update."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.policy.tiny import build_tiny_model, tiny_config
from tests.updates import runs_of_cells as settings
from tests.updates.cells import OBJECTIVES, Cell
from tests.updates.float64 import Round, Routing, hidden_states, logprobs, rounding
from tests.updates.optimizers import OPTIMIZERS, AdamW, MuonInBfloat16, Rule
from tests.updates.runs_of_cells import Outcome

__all__ = ["Critic", "Step", "Swap", "Update", "updates"]

Step = dict[str, Tensor]
"""Name of a weight -> what an update adds to it, float64."""
Swap = tuple[int, int, int]
"""Forward pass, layer and token whose last expert gives way to the next.

An update's pass is its number; that of an iteration's old log-probabilities is -1 - the number of its first update.
"""


@dataclass
class Update:
    """Steps of the policy and, in the first update of an iteration, of its critic; and ratios of new to old policy."""

    policy: Step
    critic: Step
    log_ratios: Tensor
    """[M]: of rows or of tokens, as the objective has them."""
    routing: dict[int, Routing]
    """Of the passes that a router decided on, see :data:`Swap`; empty for a dense model."""


@dataclass
class _Rows:
    """Right-padded rows of an iteration."""

    ids: Tensor
    mask: Tensor
    """[N, T - 1] bool: targets that are response tokens."""
    rewards: list[float]

    @classmethod
    def of(cls, recorded: list[dict[str, Any]]) -> _Rows:
        ordered = sorted(recorded, key=lambda row: (row["prompt_ids"], row["id"]))  # groups together
        longest = max(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in ordered)
        ids = torch.zeros(len(ordered), longest, dtype=torch.int64)
        mask = torch.zeros(len(ordered), longest - 1, dtype=torch.bool)
        for number, row in enumerate(ordered):
            start = len(row["prompt_ids"])
            end = start + len(row["completion_ids"])
            ids[number, :end] = torch.tensor(row["prompt_ids"] + row["completion_ids"])
            mask[number, start - 1 : end - 1] = True
            assert all(row["response_mask"])
        return cls(ids, mask, [row["reward"] for row in ordered])

    def within_groups(self) -> Tensor:
        """(r - mean) / (std + 1e-6) of each group of equal prompts, [N]."""
        rewards = torch.tensor(self.rewards, dtype=torch.float64).view(-1, settings.GROUP)
        centred = rewards - rewards.mean(1, keepdim=True)
        alive = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)
        return torch.where(alive, centred / (rewards.std(1, keepdim=True) + 1e-6), 0.0).flatten()

    def estimates(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Whitened advantages and the critic's targets, [N, T - 1]: a reward is paid at the last token."""
        advantages = torch.zeros_like(values)
        targets = torch.zeros_like(values)
        for row, reward in enumerate(self.rewards):
            places = self.mask[row].nonzero().flatten().tolist()
            worth = [float(v) for v in values[row, places]]
            gamma = settings.GAE["gamma"]
            for trace, store in ((settings.GAE["lam"], advantages), (settings.GAE["lam_value"], targets)):
                ahead = 0.0
                for t in reversed(range(len(places))):
                    last = t == len(places) - 1
                    delta = (reward if last else gamma * worth[t + 1]) - worth[t]
                    ahead = delta + gamma * trace * ahead
                    store[row, places[t]] = ahead
        counted = advantages[self.mask]
        white = torch.where(self.mask, (advantages - counted.mean()) / (counted.std() + 1e-8), 0.0)
        return white, torch.where(self.mask, targets + values, 0.0)


class _Model:
    """A cell's policy or critic as a function of what is trained."""

    def __init__(self, cell: Cell, r: Round) -> None:
        self.name = "tiny-qwen3" if cell.model == "dense" else "tiny-qwen3-moe"
        overrides = settings.DENSE if cell.model == "dense" else {}
        self.config = tiny_config(self.name, overrides)
        self.r = r
        self.frozen: dict[str, Tensor] = {}
        if cell.weights != "all":
            base = build_tiny_model(self.name, settings.SEED, overrides=overrides).state_dict()
            self.frozen = {name: weight.double() for name, weight in base.items()}
            self.frozen["lora.scale"] = torch.tensor(settings.ALPHA / settings.RANK, dtype=torch.float64)
            if cell.weights == "QLoRA":
                self.frozen |= {name: _in_4_bits(base[name]) for name in base if _is_packed(name)}
        self.replays = cell.model in ("MoE R2", "MoE R3")

    def states(
        self,
        trained: Mapping[str, Tensor],
        ids: Tensor,
        routes: list[Tensor] | None = None,
        swaps: Collection[tuple[int, int]] = (),
    ) -> tuple[Tensor, Routing]:
        return hidden_states({**self.frozen, **trained}, ids, self.config, self.r, routes, swaps)

    def logprobs(self, trained: Mapping[str, Tensor], hidden: Tensor, ids: Tensor) -> Tensor:
        return logprobs({**self.frozen, **trained}, hidden, ids, settings.TEMPERATURE, self.r)


def _is_packed(name: str) -> bool:
    return "_proj.weight" in name


def _in_4_bits(weight: Tensor) -> Tensor:
    """What NF4 leaves of a weight, by bitsandbytes' own code."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return dequantize_4bit(packed, state).double()


def updates(
    cell: Cell,
    outcome: Outcome,
    dtype: torch.dtype = torch.float64,
    shifts: Sequence[float] = (),
    swaps: Collection[Swap] = (),
) -> list[Update]:
    """The updates of a cell, in their order.

    Every update begins at the weights of the run, so an error does not grow from one to the next.

    Args:
        cell: what to compute.
        outcome: what its run has left.
        dtype: every product is rounded to it (:mod:`tests.updates.float64`), and Muon's as torch does.
        shifts: added to every log-ratio of an update; nothing by default.
        swaps: experts of the policy that are not the ones with the highest scores.
    """
    r = rounding(dtype)
    model = _Model(cell, r)
    kind: type[Rule] = OPTIMIZERS[cell.optimizer]
    if cell.optimizer == "Muon" and dtype != torch.float64:
        kind = MuonInBfloat16
    optimizer = _Optimizer(lambda: kind(settings.RATES[cell.optimizer]))  # type: ignore[call-arg]
    critic = Critic(cell, r) if cell.critic == "critic" else None
    computed: list[Update] = []
    for iteration, recorded in enumerate(outcome.rows):
        rows = _Rows.of(recorded)
        first = iteration * settings.PASSES
        start = _leaves(outcome.weights[first])
        with torch.no_grad():
            hidden, before = model.states(start, rows.ids, swaps=_of_pass(swaps, -1 - first))
            old = model.logprobs(start, hidden, rows.ids)
        advantages: Tensor = rows.within_groups()
        of_critic: Step = {}
        if critic is not None:
            advantages, of_critic = critic.update(rows, outcome, first)
        for number in range(first, first + settings.PASSES):
            leaves = _leaves(outcome.weights[number])
            replayed = before.experts if model.replays else None
            hidden, now = model.states(leaves, rows.ids, replayed, _of_pass(swaps, number))
            new = model.logprobs(leaves, hidden, rows.ids)
            shifted = new + shifts[number] if shifts else new
            loss = OBJECTIVES[cell.objective].equation(_listed(shifted, old, advantages, rows.mask))
            step = optimizer.step(_gradients(loss, leaves), settings.LIMIT)
            ratios = _log_ratios(cell, (new - old).detach(), rows.mask)
            routing = {-1 - first: before} if model.replays else {-1 - first: before, number: now}
            computed.append(Update(step, of_critic if number == first else {}, ratios, routing))
    return computed


def _of_pass(swaps: Collection[Swap], number: int) -> list[tuple[int, int]]:
    return [(layer, token) for swapped, layer, token in swaps if swapped == number]


def _log_ratios(cell: Cell, changes: Tensor, mask: Tensor) -> Tensor:
    """Means of rows for a sequence's ratio; a part of a row has a noise between a row's and a token's."""
    if cell.objective in ("GSPO", "GSPOToken", "LUSPO", "VESPO", "GMPO"):
        return torch.where(mask, changes, 0.0).sum(1) / mask.sum(1)
    return changes[mask]


def _listed(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> list[Any]:
    rows = []
    for i in range(len(mask)):
        places = mask[i].nonzero().flatten().tolist()
        if advantages.ndim == 1:
            row_advantages = [advantages[i]] * len(places)
        else:
            row_advantages = [advantages[i, t] for t in places]
        rows.append((list(new[i, places].unbind()), list(old[i, places].unbind()), row_advantages))
    return rows


class _Optimizer:
    """One rule a weight, after the gradient was clipped by its whole norm."""

    def __init__(self, build: Any) -> None:
        self.build = build
        self.rules: dict[str, Rule] = {}

    def step(self, gradients: Mapping[str, Tensor], limit: float) -> Step:
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        factor = min(1.0, limit / (norm + 1e-6))
        changes: Step = {}
        for name, gradient in gradients.items():
            rule = self.rules.setdefault(name, self.build())
            changes[name] = rule.step(factor * gradient)
        return changes


class Critic:
    """The value model: a copy of the policy with a head of one number, both by AdamW."""

    def __init__(self, cell: Cell, r: Round) -> None:
        self.model = _Model(cell, r)
        self.optimizer = _Optimizer(lambda: AdamW(settings.CRITIC_RATE))

    def update(self, rows: _Rows, outcome: Outcome, first: int) -> tuple[Tensor, Step]:
        """Advantages of the policy from the values before this update, and its step."""
        leaves = _leaves(self.weights(outcome, first))
        values = self.values(leaves, rows)
        advantages, targets = rows.estimates(values.detach())
        loss = 0.5 * (values - targets)[rows.mask].square().mean()
        return advantages, self.optimizer.step(_gradients(loss, leaves), settings.CRITIC_LIMIT)

    def values(self, leaves: Mapping[str, Tensor], rows: _Rows) -> Tensor:
        hidden, _ = self.model.states(leaves, rows.ids)
        worth = hidden[:, :-1] @ leaves["head.weight"].T + leaves["head.bias"]
        return torch.where(rows.mask, worth.squeeze(-1), 0.0)

    @staticmethod
    def weights(outcome: Outcome, moment: int) -> dict[str, Tensor]:
        """Of the critic at a moment of the run, by the policy's names."""
        state = outcome.critics[moment]
        shapes = {name: weight.shape for name, weight in outcome.weights[moment].items() if name != "lm_head.weight"}
        trunk = {}
        for name, saved in state["trunk"].items():
            plain = name.removeprefix("policy.model.").replace(".default.weight", "")
            trunk[plain] = saved["weight"].view(shapes[plain])
        assert trunk.keys() == shapes.keys()
        return trunk | {f"head.{name}": weight for name, weight in state["head"].items()}


def _leaves(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float64 copies with gradients; a head that is tied to the embedding is the embedding."""
    tied = "lm_head.weight" in weights and torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    names = [name for name in weights if not (tied and name == "lm_head.weight")]
    return {name: weights[name].double().requires_grad_() for name in names}


def _gradients(loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }
