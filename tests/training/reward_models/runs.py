"""Small real runs of ``gspo fit-reward`` in this process, shared by the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.cli import main
from gspo_lightning.core.randomness import stream

Record = dict[str, Any]


def worth(answer: str) -> float:
    """The planted utility: linear in the letters of an answer, and less for its length."""
    return 1.5 * answer.count("A") - 1.0 * answer.count("B") + 0.5 * answer.count("7") - 0.1 * len(answer)


def planted(count: int, seed: int = 0) -> list[Record]:
    """Pairs of random answers; Bradley and Terry's probability decides which one is chosen."""
    found = []
    for number in range(count):
        draws = [stream(seed, number, place) for place in range(40)]
        sides = ["".join("AB7xyz"[d % 6] for d in draws[start : start + 3 + draws[start] % 12]) for start in (0, 16)]
        wins = draws[39] % 10**6 < 1e6 * float(torch.tensor(worth(sides[0]) - worth(sides[1])).sigmoid())
        chosen, rejected = sides if wins else sides[::-1]
        if chosen != rejected:
            found.append({"prompt": f"{number % 100}+1:", "chosen": chosen, "rejected": rejected})
    return found


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def command(root: Path, train: str, *more: str) -> list[str]:
    return [
        "fit-reward", f"--data.train={train}", "--trainer.accelerator=cpu", "--trainer.devices=1",
        f"--trainer.default_root_dir={root}", "--trainer.enable_progress_bar=false", *more,
    ]  # fmt: skip


def fit_reward(root: Path, train: str, *more: str, code: int = 0) -> Path:
    """Train; returns the newest run folder."""
    assert main(command(root, train, *more)) == code
    return newest(root)


def newest(root: Path) -> Path:
    return max((root / "run").glob("version_*"), key=lambda folder: int(folder.name.split("_")[1]))


def weights(run: Path) -> dict[str, torch.Tensor]:
    loaded = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
    found: dict[str, torch.Tensor] = loaded["state_dict"]
    return found


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    return found
