"""The preference pairs that ship with ``configs/reward_model.yaml``: ``python -m tools.preferences`` writes them.

Answers to the quickstart's arithmetic, told apart by a utility that a reader can check: one point for every step that
is written down, one for a marked answer, minus two for a step that is written twice. Which of two answers is chosen is
drawn with the probability of Bradley and Terry, ``sigmoid(difference)``, so that no model can be right about all pairs:
the best one is right about the share that :func:`bayes` gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from gspo_lightning.core.randomness import stream
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.tasks.chain import Split

__all__ = ["FILES", "FOLDER", "bayes", "pairs", "utility"]

FOLDER = Path(__file__).parents[1] / "configs" / "preferences"
FILES: dict[str, tuple[Split, int]] = {"chains.jsonl": ("train", 1536), "chains_held_out.jsonl": ("held_out", 512)}
"""File -> split of the quickstart's task, and number of prompts."""


def utility(answer: str) -> float:
    """What an answer is worth.

    >>> utility("7+5=2;2*3=6;#6"), utility("#6"), utility("7+5=2;7+5=2;6")
    (3.0, 1.0, 0.0)
    """
    *steps, last = answer.split(";")
    return len(steps) + last.startswith("#") - 2.0 * (len(steps) - len(set(steps)))


def pairs(split: Split, prompts: int) -> Iterator[dict[str, str]]:
    """One pair for each prompt."""
    for number, record in enumerate(ChainTask(split=split, size=prompts, seed=23).records()):
        steps = str(record["steps"]).rstrip(";").split(";")
        draws = [stream(23, number, place) for place in range(8)]
        first, second = (_answer(steps, str(record["answer"]), draws[place : place + 3]) for place in (0, 3))
        if utility(first) == utility(second):
            second = f"#{record['answer']}" if utility(first) != 1 else ";".join([*steps, f"#{record['answer']}"])
        wins = draws[6] % 10**6 < 10**6 / (1 + math.exp(utility(second) - utility(first)))
        chosen, rejected = (first, second) if wins else (second, first)
        yield {"prompt": str(record["prompt"]), "chosen": chosen, "rejected": rejected}


def _answer(steps: list[str], answer: str, draws: list[int]) -> str:
    """Some of the steps, one of them perhaps twice, and the answer with or without its mark."""
    kept = steps[: draws[0] % (len(steps) + 1)]
    if kept and draws[1] % 4 == 0:
        kept = [*kept, kept[-1]]
    return ";".join([*kept, f"#{answer}" if draws[2] % 4 else answer])


def bayes(rows: list[dict[str, str]]) -> float:
    """The expected share of pairs that the utility itself is right about."""
    chances = [1 / (1 + math.exp(-abs(utility(row["chosen"]) - utility(row["rejected"])))) for row in rows]
    return sum(chances) / len(chances)


def write() -> None:
    """All files."""
    FOLDER.mkdir(exist_ok=True)
    for name, (split, prompts) in FILES.items():
        rows = list(pairs(split, prompts))
        (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{name}: {len(rows)} pairs; no model is right about more than {bayes(rows):.3f} of such pairs")


if __name__ == "__main__":
    write()
