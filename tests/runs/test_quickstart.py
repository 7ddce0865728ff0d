"""The promise of the README: the quickstart learns, and leaves what it says it leaves."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo_lightning.cli import main
from gspo_lightning.core.metric_table import table
from tests.runs import runs

FULL = "model.metrics: full"
MET = {
    "", FULL, "model.metrics: full or basic", f"{FULL}; iteration 0 and every model.histogram_every updates",
    f"{FULL}; update 1 and every model.histogram_every", f"{FULL}; once an iteration",
    f"{FULL}; iterations with such responses", f"{FULL}; updates with such sequences",
    f"{FULL}; updates with such tokens",
    "groups of at least two, and no critic, which compares with more than the group", "runs with held-out prompts",
    "objectives with a clip range", "objectives that exponentiate a ratio", "sequence-level objectives",
    "objectives with a lower clip bound", "objectives with an upper clip bound", "runs that begin with a cold start",
    "rollout sources that report log-probs", "evaluations: step 0 and every k iterations", "evaluations",
}  # fmt: skip
"""Conditions in the definitions (``when``) that the quickstart meets; other metrics belong to tests of other runs."""


def assert_learnt(run: Path, seed: int) -> None:
    summary = runs.summary(run)
    assert summary["accuracy_before"] <= 0.5
    assert summary["accuracy_after"] >= 0.95
    assert summary["seed"] == seed
    assert summary["updates"] == 4 * summary["iterations"] == 80


def test_seed_1_learns(quickstart: Path) -> None:
    assert_learnt(quickstart, 1)


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.long
def test_other_seeds_learn(tmp_path: Path, seed: int) -> None:
    assert_learnt(runs.fit(tmp_path, f"--seed_everything={seed}", small=False), seed)


def test_summary_names_what_was_measured(quickstart: Path) -> None:
    summary = runs.summary(quickstart)
    assert {"iterations", "updates", "seconds", "objective", "clip_fraction_tokens", "versions"} <= summary.keys()
    assert summary["objective"] == "GSPO"
    assert summary["versions"]["torch"] == version("torch")  # not __version__, which may name a kind of device, too
    assert summary["peak_memory_mb"] > 0
    assert 0 < summary["clip_fraction_tokens"] < 1
    assert len(summary["examples"]) == 3


def test_policy_discovers_that_steps_pay(quickstart: Path) -> None:
    lengths = runs.scalars(quickstart)["val/response_length"]
    assert lengths[0][1] < 6
    assert lengths[-1][1] > 18
    assert any(";" not in e["before"] and e["after"].count(";") == 3 for e in runs.summary(quickstart)["examples"])


def test_run_folder_holds_config_and_picture(quickstart: Path) -> None:
    config = yaml.safe_load((quickstart / "config.yaml").read_text())
    assert config["data"]["group_size"] == 8
    assert (quickstart / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert (quickstart / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.thorough
def test_event_file_holds_every_metric_of_the_table_at_every_update(quickstart: Path) -> None:
    reader = runs.events(quickstart)
    tags = reader.Tags()
    texts = {t.removesuffix("/text_summary") for t in tags["tensors"]} - {"custom_scalars__config__"}
    written = {*tags["scalars"], *tags["histograms"], *texts}
    unknown = [tag for tag in written if table.lookup(tag) is None]
    assert not unknown, f"written but not in the table: {unknown}"
    assert {spec.when for spec in table.METRICS} >= MET
    for spec in (spec for spec in table.METRICS if spec.when in MET):
        names = [tag for tag in written if table.lookup(tag) is spec]
        assert names, f"{spec.tag} is in the table but was not written"
        always = spec.kind == "scalar" and not spec.tag.startswith(("val/", "by_mini_batch/", "cold_start/"))
        for name in names if always and "with such" not in spec.when else ():
            assert [e.step for e in reader.Scalars(name)] == list(range(1, 81)), name
    assert [e.step for e in reader.Scalars("cold_start/loss")] == list(range(-797, 0, 4))  # 800 steps, 200 points


def test_values_by_mini_batch_are_those_of_the_updates_at_that_place(quickstart: Path) -> None:
    scalars = runs.scalars(quickstart)
    for place in range(4):
        every_fourth = [(step, value) for step, value in scalars["clip/tokens"] if (step - 1) % 4 == place]
        assert scalars[f"by_mini_batch/clip_tokens_{place}"] == every_fourth
    assert "by_mini_batch/clip_tokens_4" not in scalars


def test_evaluations_carry_the_number_of_updates(quickstart: Path) -> None:
    assert [step for step, _ in runs.scalars(quickstart)["val/accuracy"]] == [0, 20, 40, 60, 80]


def test_first_update_of_an_iteration_is_exactly_on_policy(quickstart: Path) -> None:
    scalars = runs.scalars(quickstart)
    for tag in ("ratio/log_sequence_mean", "ratio/log_sequence_std", "clip/tokens"):
        first = [value for step, value in scalars[tag] if step % 4 == 1]
        assert first == [0.0] * 20, tag
    assert all(value == 1.0 for step, value in scalars["ratio/mean"] if step % 4 == 1)
    assert scalars["optim/gradient_norm"][0][1] > 0  # and still the first update moves the weights


@pytest.mark.thorough
def test_validate_reproduces_the_final_accuracy(quickstart: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = quickstart / "checkpoints" / "last.ckpt"
    root = quickstart.parents[1]
    argv = ["validate", f"--config={runs.QUICKSTART}", f"--trainer.default_root_dir={root}", f"--ckpt_path={last}"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert f"{100 * runs.summary(quickstart)['accuracy_after']:.2f}%" in shown


def test_exported_model_answers_the_same(quickstart: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    assert main(["export", str(quickstart / "checkpoints" / "last.ckpt"), str(out)]) == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    for name, value in model.state_dict().items():
        assert torch.equal(value, runs.weights(quickstart)[f"policy.model.{name}"]), name
    example = runs.summary(quickstart)["examples"][0]
    ids = tokenizer(example["prompt"], return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=32, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == example["after"]


@pytest.mark.thorough
def test_predict_writes_what_can_be_trained_on_again(quickstart: Path, tmp_path: Path) -> None:
    last = quickstart / "checkpoints" / "last.ckpt"
    argv = ["predict", f"--config={runs.QUICKSTART}", f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={last}"]
    assert main([*argv, "--data.evaluation.limit=8", "--data.reward_workers=1"]) == 0
    (file,) = quickstart.glob("predict/*/predictions.jsonl")
    assert not list(tmp_path.iterdir())
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 8
    for row in rows:
        assert len(row["completion_ids"]) == len(row["logprobs"]) == len(row["response_mask"])
        assert row["completion_ids"][-1] == 1  # <eos> is part of the response
        assert row["reward"] == float(row["completion"].endswith("#" + row["answer"]))
