"""The runs: variants x seeds by ``gspo compare``, which makes those that are missing and leaves the others.

All of them begin with one cold start, that of seed 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gspo_lightning.cli import main as gspo
from gspo_lightning.data.prompts import ChainTask

__all__ = ["CONFIG", "RUNS", "VARIANTS", "make_files", "run_all"]

CONFIG = Path(__file__).with_name("config.yaml")
VARIANTS = {
    "Uniform": "--data.curriculum Uniform",
    "Uniform + resampling": "--data.curriculum Uniform --data.resample_dead_groups 32",
    "DifficultyPools": "--data.curriculum DifficultyPools",
    "TargetRate": "--data.curriculum TargetRate",
    "Informative": "--data.curriculum Informative",
    "Informative, sharpness 4": "--data.curriculum Informative --data.curriculum.sharpness 4",
}
"""Name -> arguments of ``gspo fit``."""
OPERANDS = {3: 2048, 4: 4096, 6: 4096}
"""Difficulty -> prompts; there are 2,250 of three operands."""
HELD_OUT = 64
"""Prompts of each difficulty."""
RUNS = "runs"
COLD_START_SEED = 1


def make_files(folder: Path) -> None:
    """The prompts of all difficulties in one file, and the held-out ones in another."""
    for name, split in (("train.jsonl", "train"), ("held_out.jsonl", "held_out")):
        lines = [
            json.dumps({"prompt": r["prompt"], "answer": r["answer"], "difficulty": n, "source": f"{n} operands"})
            for n, size in OPERANDS.items()
            for r in ChainTask(split=split, size=size if split == "train" else HELD_OUT, operands=n).records()  # type: ignore[arg-type]
        ]
        (folder / name).write_text("\n".join(lines) + "\n")


def run_all(folder: Path, config: Path, variants: Mapping[str, str], seeds: Sequence[int], iterations: int) -> int:
    """Every variant with every seed: finished runs stay. Returns the exit code of ``gspo``."""
    folder.mkdir(parents=True, exist_ok=True)
    make_files(folder)
    (folder / "curricula.yaml").write_text(config.read_text())
    before = Path.cwd()
    os.chdir(folder)
    try:
        if code := _make_cold_start():
            return code
        argv = ["compare", "--config", "curricula.yaml", "--output", RUNS, "--seeds", ",".join(map(str, seeds))]
        for name, arguments in variants.items():
            argv += ["--variant", f"{name}: {arguments}"]
        shared = [
            f"--model.name_or_path={_cold_starts()[0].resolve()}",
            "--model.cold_start=null",
            f"--trainer.max_epochs={iterations}",
        ]
        return gspo([*argv, *shared])
    finally:
        os.chdir(before)


def _cold_starts() -> list[Path]:
    return sorted(file.parent for file in Path("first/cold_start").glob("*/model.safetensors"))


def _make_cold_start() -> int:
    """One iteration makes the taught model, if it is missing."""
    if _cold_starts():
        return 0
    argv = ["fit", "--config=curricula.yaml", f"--seed_everything={COLD_START_SEED}", "--trainer.max_epochs=1"]
    return gspo([*argv, "--trainer.default_root_dir=first"])
