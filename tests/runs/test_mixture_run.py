"""Runs of several sources, with rewards by record and a curriculum: the words of a config, resumed and on two ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gspo_lightning.cli import main
from gspo_lightning.data.prompts.tasks.chain import ChainTask
from tests.runs import runs
from tests.runs.processes import Command

GRADED = str(Path(__file__).with_name("graded.py"))
PROMPTS, GROUP = 8, 4


def write_prompts(path: Path, operands: int, size: int, split: str = "train", **columns: Any) -> None:
    records = ChainTask(split=split, size=size, operands=operands).records()  # type: ignore[arg-type]
    lines = [
        {"prompt": r["prompt"], "answer": r["answer"], "difficulty": i % 7, **columns} for i, r in enumerate(records)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def config(folder: Path, name: str = "mixture", **data: Any) -> Path:
    """Two files, three of the first to one of the second, which has a reward more."""
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "math.jsonl", 3, 40)
    write_prompts(folder / "code.jsonl", 4, 30)
    write_prompts(folder / "math_val.jsonl", 3, 10, "held_out")
    write_prompts(folder / "code_val.jsonl", 4, 6, "held_out")
    sources = [
        {
            "train": f"{folder}/math.jsonl", "weight": 3, "val": f"{folder}/math_val.jsonl",
            "rewards": {"correct": "Graded"},
        },
        {
            "train": f"{folder}/code.jsonl", "weight": 1, "val": f"{folder}/code_val.jsonl",
            "rewards": {"correct": "Graded", "form": {"class_path": "FormatReward", "init_args": {"pattern": "."}}},
        },
    ]  # fmt: skip
    content = {
        "seed_everything": 1,
        "plugins": [GRADED],
        "trainer": {
            "accelerator": "cpu", "devices": 1, "max_epochs": 4, "check_val_every_n_epoch": 2,
            "callbacks": [{"class_path": "RunSummary", "init_args": {"report": False}}],
        },
        "model": {"name_or_path": "tiny-qwen3", "objective": "GSPO"},
        "data": {
            "train": {"class_path": "Mixture", "init_args": {"sources": sources}},
            "rewards": {}, "group_size": GROUP, "prompts_per_rollout": PROMPTS, "minibatches_per_rollout": 2,
            "max_prompt_tokens": 16, "max_response_tokens": 12, "max_tokens_per_micro_batch": 120,
            "reward_workers": 1, "record_rollouts": True, **data,
        },
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def run(path: Path, root: Path, *arguments: str, code: int = 0) -> Path:
    return runs.fit(root, *arguments, small=False, config=path, code=code)


def recorded(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Iteration -> the responses that were sampled in it."""
    found: dict[int, list[dict[str, Any]]] = {}
    for file in sorted((folder / "rollouts").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found.setdefault(row["iteration"], []).append(row)
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    return run(config(root), root)


@pytest.mark.thorough
def test_every_iteration_has_its_quotas_and_every_source_its_numbers(mixed: Path) -> None:
    """Means by hand, from the recorded responses."""
    curves, rows = runs.scalars(mixed), recorded(mixed)
    assert sorted(rows) == [0, 1, 2, 3]
    for iteration, found in rows.items():
        of = {name: [r for r in found if (len(r["prompt"]) == 6) == (name == "math")] for name in ("math", "code")}
        assert {name: len(rs) for name, rs in of.items()} == {"math": 6 * GROUP, "code": 2 * GROUP}
        for name, responses in of.items():
            by_prompt: dict[str, list[float]] = {}
            for r in responses:
                by_prompt.setdefault(r["prompt"], []).append(r["reward"])
            step = 2 * iteration + 1
            rewards = [r["reward"] for r in responses]
            assert dict(curves[f"source/{name}/reward"])[step] == pytest.approx(sum(rewards) / len(rewards), abs=1e-6)
            tokens = sum(len(r["completion_ids"]) for r in responses) / len(responses)
            assert dict(curves[f"source/{name}/length"])[step] == pytest.approx(tokens, abs=1e-6)
            dead = sum(len(set(v)) == 1 for v in by_prompt.values()) / len(by_prompt)
            assert dict(curves[f"source/{name}/dead_groups"])[step] == pytest.approx(dead, abs=1e-6)
    assert dict(curves["reward/not_applicable"])[1] == 0.75  # form is for a quarter of the responses


@pytest.mark.thorough
def test_clipped_tokens_of_the_sources_make_up_those_of_all(mixed: Path) -> None:
    curves = runs.scalars(mixed)
    steps = [step for step, value in curves["clip/tokens"] if value > 0]
    assert steps
    tokens = {name: dict(curves[f"source/{name}/length"]) for name in ("math", "code")}
    rows = recorded(mixed)
    assert tokens
    for step in steps:
        shares = [dict(curves[f"source/{name}/clipped_tokens"])[step] for name in ("math", "code")]
        assert min(shares) - 1e-6 <= dict(curves["clip/tokens"])[step] <= max(shares) + 1e-6
    assert len(rows) == 4


@pytest.mark.thorough
def test_held_out_prompts_are_counted_by_source(mixed: Path) -> None:
    """10 and 6 prompts: what they have in common is their mean, weighted by how many there are."""
    curves = runs.scalars(mixed)
    for tag in ("accuracy", "reward"):
        for step, value in curves[f"val/{tag}"]:
            math, code = (dict(curves[f"val/source/{name}/{tag}"])[step] for name in ("math", "code"))
            assert value == pytest.approx((10 * math + 6 * code) / 16, abs=1e-6)


CURRICULUM = {
    "curriculum": "Informative", "resample_dead_groups": 4, "group_size": 2,
    "reward_weights": {"correct": 1.0, "form": 0.0},
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("curriculum", "updates"),
    [
        ("Informative", [2, 3]),  # between two iterations, and within one
        *(pytest.param(name, range(1, 8), marks=pytest.mark.long) for name in ("TargetRate", "DifficultyPools")),
    ],
)
def test_interrupts_change_nothing(curriculum: str, updates: Sequence[int], tmp_path: Path) -> None:
    path = config(tmp_path / "files", **(CURRICULUM | {"curriculum": curriculum}))
    whole = run(path, tmp_path / "whole")
    with runs.interrupted(lambda loader: loader.iteration * 2 + loader.trained in updates):
        for update in updates:
            again = run(path, tmp_path / "often", "--ckpt_path=last", code=130)
            assert runs.checkpoint(again)["global_step"] == update
    again = run(path, tmp_path / "often", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(again), runs.weights(whole)) == 0.0
    assert runs.scalars(again) == runs.scalars(whole)
    assert prompts(again) == prompts(whole)
    saved = [curriculum_state(one) for one in (again, whole)]
    assert str(saved[0]) == str(saved[1])
    assert len(saved[0][0]["places"]) > 8  # of the first source more than an iteration's
    assert prompts(whole) != prompts(
        run(config(tmp_path / "plain", **(CURRICULUM | {"curriculum": None})), tmp_path / "u")
    )


def prompts(folder: Path) -> dict[int, Counter[str]]:
    return {iteration: Counter(r["prompt"] for r in rows) for iteration, rows in recorded(folder).items()}


def curriculum_state(folder: Path) -> list[dict[str, Any]]:
    state: list[dict[str, Any]] = runs.checkpoint(folder)["PromptDataModule"]["curricula"]
    return state


@pytest.mark.thorough
def test_two_ranks_learn_and_choose_as_one(tmp_path: Path) -> None:
    """Two real processes over gloo; the budget for dead groups is a rank's, so half of it each."""
    still = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.01"]
    one = run(config(tmp_path / "one", **CURRICULUM), tmp_path / "one", *still)
    path = config(tmp_path / "two", **CURRICULUM)
    argv = ["fit", f"--config={path}", *still, "--trainer.devices=2", "--trainer.strategy=ddp"]
    argv += ["--data.resample_dead_groups=0", f"--trainer.default_root_dir={tmp_path / 'two'}"]
    alone = run(path, tmp_path / "alone", *still, "--data.resample_dead_groups=0")
    log = tmp_path / "log"
    assert Command(argv, 2, log=log).start().wait() == [0, 0], log.read_text()
    both = tmp_path / "two" / "mixture" / "version_0"
    assert str(curriculum_state(both)) == str(curriculum_state(alone))
    assert prompts(both) == prompts(alone)
    assert len(curriculum_state(both)) == 2
    assert prompts(one) != prompts(alone)
    mine, theirs = runs.scalars(both), runs.scalars(alone)
    for tag in ("source/math/reward", "source/code/length", "source/math/clipped_tokens", "val/source/code/accuracy"):
        assert [v for _, v in mine[tag]] == pytest.approx([v for _, v in theirs[tag]], abs=1e-5)


@pytest.mark.thorough
def test_rollouts_made_ahead_keep_the_quotas(tmp_path: Path) -> None:
    ahead = run(config(tmp_path, curriculum="Informative", max_staleness=1), tmp_path)
    for rows in recorded(ahead).values():
        assert Counter(len(r["prompt"]) for r in rows) == {6: 6 * GROUP, 8: 2 * GROUP}


@pytest.mark.thorough
def test_partial_rollouts_take_sources_in_their_order_and_no_curriculum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, prompts_in_flight=12, record_rollouts=False)
    curves = runs.scalars(run(path, tmp_path))
    assert sum(v for tag in ("source/math/groups", "source/code/groups") for _, v in curves[tag]) == 8 * PROMPTS
    run(path, tmp_path, "--data.curriculum=Informative", code=2)
    assert "data.curriculum: cannot be combined with partial rollouts" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_column_of_one_file_chooses_rewards_and_sources_of_the_evaluation(tmp_path: Path) -> None:
    write_prompts(tmp_path / "a.jsonl", 3, 12, source="math")
    write_prompts(tmp_path / "b.jsonl", 4, 12, source="code")
    (tmp_path / "all.jsonl").write_text((tmp_path / "a.jsonl").read_text() + (tmp_path / "b.jsonl").read_text())
    one = {"by": "source", "math": "Graded", "code": {"class_path": "Flat"}}
    path = config(tmp_path, train=f"{tmp_path}/all.jsonl", val=f"{tmp_path}/all.jsonl", rewards={"correct": one})
    curves = runs.scalars(run(path, tmp_path))
    assert {v for _, v in curves["val/source/code/accuracy"]} == {1.0}  # Flat pays 1 to everything
    assert {v for _, v in curves["val/source/math/accuracy"]} == {0.0}  # Graded never more than 6/7
    assert "source/math/reward" not in curves  # no mixture: nothing is drawn by source


@pytest.mark.thorough
def test_a_generated_set_can_be_a_source(tmp_path: Path) -> None:
    path = config(tmp_path)
    content = yaml.safe_load(path.read_text())
    sources = content["data"]["train"]["init_args"]["sources"]
    sources[1] = {
        "train": {"class_path": "LogicTask", "init_args": {"style": "compact", "size": 20, "difficulty": 1}},
        "rewards": {"correct": "LogicPuzzle"}, "name": "logic",
    }  # fmt: skip
    content["data"]["max_prompt_tokens"] = 40
    path.write_text(yaml.safe_dump(content))
    curves = runs.scalars(run(path, tmp_path, "--trainer.max_epochs=1"))
    assert {v for _, v in curves["source/logic/groups"]} == {2.0}
    assert "source/logic/reward" in curves


@pytest.mark.thorough(
    "change3-source 'nowhere': the prompt file 'nowhere.jsonl' does not exist",
    "change8-no reward applies to a record with source = 'math'",
)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weigth": 1}, "data.train.init_args.sources[0].weigth: is not a setting"),
        ({"weight": 0}, "sources[0].weight: is 0.0; it must be a number above 0"),
        ({"weight": "much"}, "data.train.init_args.sources[0].weight: is 'much'; it must be a number"),
        ({"train": "nowhere.jsonl"}, "source 'nowhere': the prompt file 'nowhere.jsonl' does not exist"),
        (
            {"rewards": {"correct": "Grated"}},
            "data.train.init_args.sources[0].rewards.correct: 'Grated' is not registered",
        ),
        (
            {"rewards": {"correct": {"by": "kind", "a": "Graded"}}},
            "data.rewards.correct: chooses by a column, within a source",
        ),
        ({"name": "code"}, "is 'code', as another source is called"),
        ({"columns": {"prompt": "question"}}, "source 'math': is 'question', which is not a column of math.jsonl"),
        ({"rewards": None}, "no reward applies to a record with source = 'math'"),
    ],
)
def test_mistakes_in_a_source_are_named(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    content = yaml.safe_load(path.read_text())
    content["data"]["train"]["init_args"]["sources"][0].update(change)
    path.write_text(yaml.safe_dump(content))
    assert main(["fit", f"--config={path}", f"--trainer.default_root_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"correct": {"by": "source", "math": "Grated"}}, "data.rewards.correct.math: 'Grated' is not registered"),
        ({"correct": {"math": "Graded"}}, "data.rewards.correct"),
        ({"correct": "Grated"}, "data.rewards.correct: 'Grated' is not registered"),
    ],
)
def test_mistakes_in_rewards_by_record_are_named(
    rewards: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, rewards=rewards)
    assert main(["fit", f"--config={path}", f"--trainer.default_root_dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.thorough
def test_a_printed_config_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"by": "source", "math": "Graded", "code": "Flat"}
    path = config(tmp_path, rewards={"other": one}, curriculum="Informative")
    assert main(["fit", f"--config={path}", "--print_config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    first = run(path, tmp_path / "first", "--trainer.max_epochs=1")
    second = run(tmp_path / "printed.yaml", tmp_path / "second", "--trainer.max_epochs=1")
    assert runs.largest_difference(runs.weights(first), runs.weights(second)) == 0.0
    assert torch.equal(curriculum_state(first)[0]["places"], curriculum_state(second)[0]["places"])
