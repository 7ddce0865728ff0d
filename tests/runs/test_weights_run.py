"""Prompts by the column ``weight``: exact shares in a run, resumed and on two ranks, and weights that are refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.data.prompts.tasks.chain import ChainTask
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.test_mixture_run import config, prompts, run

WEIGHTS = (1, 2, None, 3)
"""None counts as 1."""
ITERATIONS, PROMPTS = 7, 4


def write(path: Path, *changed: object) -> Path:
    """Twelve prompts; ``changed`` takes the place of the weights."""
    weights = [*changed, *(list(WEIGHTS) * 3)[len(changed) :]]
    records = zip(ChainTask(split="train", size=12, operands=3).records(), weights, strict=True)
    rows = ({"prompt": r["prompt"], "answer": r["answer"], "weight": weight} for r, weight in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))  # an empty line first
    return path


def words(folder: Path, **data: Any) -> Path:
    """A config of one file, of which 21 draws are a period."""
    file = write(folder / "p.jsonl")
    options = {"prompts_per_rollout": PROMPTS, "group_size": 2, "val": None, "rewards": {"correct": "Graded"}}
    return config(folder, train=str(file), **(options | data))


def by_weight(folder: Path) -> dict[str, int]:
    rows = [json.loads(line) for line in (folder.parents[1] / "p.jsonl").read_text().splitlines() if line]
    return {row["prompt"]: row["weight"] or 1 for row in rows}


@pytest.mark.thorough
def test_every_prompt_is_drawn_by_its_weight_and_interrupts_change_nothing(tmp_path: Path) -> None:
    """Weights add up to 21: seven iterations of three draw each prompt exactly as often as its weight says."""
    path = words(tmp_path / "whole", prompts_per_rollout=3, minibatches_per_rollout=1)
    epochs = f"--trainer.max_epochs={ITERATIONS}"
    whole = run(path, tmp_path / "whole", epochs)
    total: Counter[str] = Counter()
    for iteration in prompts(whole).values():
        assert set(iteration.values()) == {2}  # a group of two: three different prompts
        total.update({*iteration})
    assert total == by_weight(whole)
    with runs.interrupted(lambda loader: loader.iteration + loader.trained in (2, 5)):
        for _ in range(2):
            run(path, tmp_path / "often", epochs, "--ckpt_path=last", code=130)
    again = run(path, tmp_path / "often", epochs, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(again), runs.weights(whole)) == 0.0
    assert runs.scalars(again) == runs.scalars(whole)
    assert prompts(again) == prompts(whole)


@pytest.mark.thorough
def test_equal_weights_change_nothing(tmp_path: Path) -> None:
    path = words(tmp_path / "equal")
    write(tmp_path / "equal" / "p.jsonl", *[2.5] * 12)
    equal = run(path, tmp_path / "equal", "--trainer.max_epochs=2")
    none = words(tmp_path / "none")
    write(tmp_path / "none" / "p.jsonl", *[None] * 12)
    assert prompts(equal) == prompts(run(none, tmp_path / "none", "--trainer.max_epochs=2"))


@pytest.mark.long
def test_weights_of_one_source_leave_the_quotas_of_all(tmp_path: Path) -> None:
    path = config(tmp_path, group_size=2, reward_weights={"correct": 1.0, "form": 0.0})
    rows = [json.loads(line) for line in (tmp_path / "math.jsonl").read_text().splitlines()]
    heavy = {row["prompt"] for row in rows[:4]}
    lines = (json.dumps(row | {"weight": 6 if row["prompt"] in heavy else 1}) + "\n" for row in rows)
    (tmp_path / "math.jsonl").write_text("".join(lines))  # 24 of 60: 10 iterations of 6 have each of them 6 times
    drawn = prompts(run(path, tmp_path, "--trainer.max_epochs=10"))
    assert all(sum(len(p) == 6 for p in iteration) == 6 for iteration in drawn.values())
    total = Counter(p for iteration in drawn.values() for p in iteration)
    assert all(5 <= total[p] <= 7 for p in heavy)


@pytest.mark.long
def test_two_ranks_draw_as_one(tmp_path: Path) -> None:
    """Two real processes over gloo."""
    one = run(words(tmp_path / "one"), tmp_path / "one")
    path = words(tmp_path / "two")
    argv = ["fit", f"--config={path}", "--trainer.devices=2", "--trainer.strategy=ddp"]
    log = tmp_path / "log"
    command = Command([*argv, f"--trainer.default_root_dir={tmp_path / 'two'}"], 2, log=log)
    assert command.start().wait() == [0, 0], log.read_text()
    assert prompts(tmp_path / "two" / "mixture" / "version_0") == prompts(one)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*weights: object, **data: Any) -> str:
        path = words(tmp_path, **data)
        write(tmp_path / "p.jsonl", *weights)
        assert main(["fit", f"--config={path}", f"--trainer.default_root_dir={tmp_path}"]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return error

    return call


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (0, "is '0', which is out of range"),
        (-1, "is '-1', which is out of range"),
        (float("inf"), "is 'inf', which is out of range"),
        (float("nan"), "is 'nan', which is out of range"),
        ("70 kg", "is '70 kg', which is not a number"),
        (True, "is 'True', which is not a number"),
        ([2], "is '[2]', which is not a number"),
    ],
)
def test_a_weight_that_is_none_is_named_with_its_file_and_line(
    refused: Callable[..., str], weight: object, problem: str
) -> None:
    error = refused(1, weight)
    assert f"data.train: p.jsonl:3: 'weight' {problem}\n" in error
    assert "fix: write numbers from 1e-06 to 1e+06 (twice as large is drawn twice as often), or rename" in error


def test_prompt_weights_that_cannot_be_drawn_exactly_are_refused(refused: Callable[..., str]) -> None:
    error = refused(1, 50)
    assert "p.jsonl:3: 'weight' is 50 of 69 in all, and an iteration takes 4 prompts" in error
    error = refused(curriculum="Informative")
    assert "data.curriculum: chooses prompts itself, and records have the column 'weight'" in error


@pytest.mark.thorough
def test_a_renamed_column_means_nothing(tmp_path: Path) -> None:
    path = words(tmp_path, columns={"own_weight": "weight"})
    write(tmp_path / "p.jsonl", "70 kg", "80 kg")
    assert len(prompts(run(path, tmp_path, "--trainer.max_epochs=1"))) == 1
