"""The kinds of runs that one update is compared for: their factors, the pairs that are refused, and the list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.objectives import reference_formulas as formulas

__all__ = ["CELLS", "FACTORS", "OBJECTIVES", "Cell", "Refusal", "combinations", "pairs", "refusal"]

TOKENS = 10
"""Response limit of every run."""


@dataclass(frozen=True)
class Kind:
    """An objective with a range that clips some of the responses, and its equation as loops over rows and tokens."""

    group: str
    settings: dict[str, Any]
    equation: formulas.Reference
    per_token: bool = True


CLIP = {"clip_low": 0.04, "clip_high": 0.05}
BETWEEN = {"clip_low": 0.055, "clip_high": 0.053}
"""Ratios that no response of the dense model comes so near to that 16 bits move it over; to 1.05 one does."""
WIDE = {"clip_low": 0.1, "clip_high": 0.15}
SEGMENT = CLIP | {"by": "length", "segment_length": 4}
OBJECTIVES: dict[str, Kind] = {
    "GSPO": Kind("sequence", BETWEEN, lambda r: formulas.gspo(0.055, 0.053, r), per_token=False),
    "GSPOToken": Kind("sequence", CLIP, lambda r: formulas.gspo_token(0.04, 0.05, r)),
    "GMPO": Kind("sequence", WIDE, lambda r: formulas.gmpo(0.1, 0.15, r), per_token=False),
    "Segment": Kind("sequence", SEGMENT, lambda r: formulas.segment(4, 0.04, 0.05, r)),
    "MultiScale": Kind("sequence", WIDE | {"alpha": 0.3}, lambda r: formulas.multi_scale(0.3, 0.1, 0.15, r)),
    "GRPO": Kind("token", WIDE, lambda r: formulas.sequence_mean(formulas.token_clip(0.1, 0.15, r))),
    "SAPO": Kind("token", {}, lambda r: formulas.sapo(1.0, 1.05, r)),
    "DAPO": Kind("all tokens", WIDE, lambda r: formulas.token_mean(formulas.token_clip(0.1, 0.15, r))),
    "PPO": Kind("all tokens", WIDE, lambda r: formulas.token_mean(formulas.token_clip(0.1, 0.15, r))),
    "CISPO": Kind("all tokens", WIDE, lambda r: formulas.cispo(0.1, 0.15, r)),
    "DPPOTV": Kind("all tokens", {"clip_low": 0.01, "clip_high": 0.01}, lambda r: formulas.dppo_tv(0.01, 0.01, r)),
    "VESPO": Kind("all tokens", {}, formulas.vespo, per_token=False),
    "LUSPO": Kind("row sums", CLIP, lambda r: formulas.luspo(0.04, 0.05, r), per_token=False),
    "DrGRPO": Kind(
        "row sums", WIDE | {"max_response_tokens": TOKENS}, lambda r: formulas.dr_grpo(TOKENS, 0.1, 0.15, r)
    ),
    "REINFORCE": Kind("row sums", {}, formulas.reinforce),
}  # fmt: skip
"""Groups of equal mathematics: whose ratio a token's loss has, and what losses are divided by. Within a group a
strategy or a precision meets the same sums."""

GROUPS = tuple(dict.fromkeys(kind.group for kind in OBJECTIVES.values()))
RANKS = {"one process": 1, "ddp": 2, "fsdp": 2, "fsdp2": 2, "hsdp": 4, "cp": 2, "ep": 2}
SHARDED = ("fsdp", "fsdp2", "hsdp", "cp", "ep")
FACTORS: dict[str, tuple[str, ...]] = {
    "objective": GROUPS,
    "optimizer": ("AdamW", "SGD", "8-bit", "Muon"),
    "precision": ("float32", "bf16-mixed", "16-mixed"),
    "strategy": tuple(RANKS),
    "weights": ("all", "LoRA", "QLoRA"),
    "critic": ("no critic", "critic"),
    "model": ("dense", "MoE", "MoE R2", "MoE R3"),
}


@dataclass(frozen=True)
class Cell:
    """One combination; ``objective`` is a member of a group."""

    objective: str
    optimizer: str
    precision: str
    strategy: str
    weights: str
    critic: str
    model: str

    @property
    def id(self) -> str:
        """Its line in the list."""
        return ", ".join(asdict(self).values())

    @property
    def levels(self) -> dict[str, str]:
        """Factor -> level, with the group in place of the objective."""
        return {**asdict(self), "objective": OBJECTIVES[self.objective].group}

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return RANKS[self.strategy]


@dataclass(frozen=True)
class Refusal:
    """A combination that no config may ask for: where two levels meet, what the run says."""

    levels: tuple[dict[str, tuple[str, ...]], ...]
    field: str
    words: str

    def applies(self, levels: dict[str, str]) -> bool:
        """True if a cell is refused."""
        return any(all(levels[factor] in values for factor, values in case.items()) for case in self.levels)


REFUSALS: dict[str, Refusal] = {
    "packed weights on shards": Refusal(
        ({"weights": ("QLoRA",), "strategy": SHARDED},), "model.lora.base", "packed weights are not numbers"
    ),
    "8-bit moments of shards": Refusal(
        ({"optimizer": ("8-bit",), "strategy": SHARDED},), "model.optimizer", "of bitsandbytes cannot step or save"
    ),
    "Muon on flat shards": Refusal(
        ({"optimizer": ("Muon",), "strategy": ("fsdp",)},), "model.optimizer", "Muon cannot step sharded weights"
    ),
    "Muon on vectors": Refusal(
        ({"optimizer": ("Muon",), "weights": ("all",)},), "model.optimizer", "Muon only supports 2D parameters"
    ),
    "float16 on shards": Refusal(
        ({"precision": ("16-mixed",), "strategy": SHARDED},), "trainer.precision", "has no loss scale that all ranks"
    ),
    "float16 with a critic": Refusal(
        ({"precision": ("16-mixed",), "critic": ("critic",)},), "trainer.precision", "has no loss scale: its gradients"
    ),
    "experts of a dense model": Refusal(
        ({"strategy": ("ep",), "model": ("dense",)},), "trainer.strategy.expert_parallel", "has no experts"
    ),
    "routers over cut rows": Refusal(
        ({"strategy": ("cp",), "model": ("MoE R2", "MoE R3")},), "trainer.strategy.context", "has routers"
    ),
}  # fmt: skip


def refusal(levels: dict[str, str]) -> str | None:
    """Name of what refuses a combination of levels; None if it trains."""
    return next((name for name, rule in REFUSALS.items() if rule.applies(levels)), None)


def combinations() -> Iterator[dict[str, str]]:
    """Every combination of levels that trains."""
    for values in itertools.product(*FACTORS.values()):
        levels = dict(zip(FACTORS, values, strict=True))
        if refusal(levels) is None:
            yield levels


Pair = tuple[str, str, str, str]


def pairs(levels: dict[str, str]) -> set[Pair]:
    """Pairs of levels that a cell covers: of two factors in float32, or of a precision and another factor.

    In a short precision a mistake has to be larger than its rounding to be seen: there it only counts by itself.
    """
    names = list(FACTORS)
    if levels["precision"] != "float32":
        return {("precision", levels["precision"], name, levels[name]) for name in names if name != "precision"}
    names.remove("precision")
    return {(a, levels[a], b, levels[b]) for a, b in itertools.combinations(names, 2)}


LIST = Path(__file__).with_name("cells.txt")


def _read() -> list[Cell]:
    lines = LIST.read_text().splitlines()
    return [Cell(*line.split(", ")) for line in lines if line and not line.startswith("#")]


CELLS: list[Cell] = _read() if LIST.is_file() else []


def chosen() -> list[Cell]:
    """A short list that covers every pair, greedily; ``python -m tests.updates --choose`` writes it."""
    every = list(combinations())
    covered = [pairs(levels) for levels in every]
    missing = set().union(*covered)
    picked: list[dict[str, str]] = []
    while missing:
        gains = [len(of_one & missing) for of_one in covered]
        # among equals the cheaper one: ranks cost most
        best = max(range(len(every)), key=lambda i: (gains[i], -RANKS[every[i]["strategy"]], -i))
        picked.append(every[best])
        missing -= covered[best]
    return _with_members(picked)


def _with_members(picked: list[dict[str, str]]) -> list[Cell]:
    """Deal the members of each group to its cells in turn; a critic's advantages are per token."""
    turns = {
        (group, critic): itertools.cycle(_members(group, critic)) for group in GROUPS for critic in FACTORS["critic"]
    }
    cells = [Cell(**{**levels, "objective": next(turns[levels["objective"], levels["critic"]])}) for levels in picked]
    absent = OBJECTIVES.keys() - {cell.objective for cell in cells}
    plain = ("SGD", "float32", "one process", "all", "no critic", "dense")
    return cells + [Cell(name, *plain) for name in OBJECTIVES if name in absent]


def _members(group: str, critic: str) -> list[str]:
    return [
        name for name, kind in OBJECTIVES.items() if kind.group == group and (kind.per_token or critic == "no critic")
    ]
