"""``gspo compare``: claims only with enough seeds, every seed on the page, runs made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.commands.compare.page import draw, page
from gspo_lightning.commands.compare.runs import Variant
from gspo_lightning.commands.compare.stats import MEASURES, paired_difference
from gspo_lightning.report.read import read_run
from tests.runs.processes import Command
from tests.runs.runs import QUICKSTART, SMALL, UNTAUGHT, fit, weights
from tests.support.recorded_run import write_run


def test_an_interval_by_enumeration() -> None:
    found = paired_difference([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])
    means = sorted((a + b + c) / 3 for a in (0, 1, 3) for b in (0, 1, 3) for c in (0, 1, 3))
    assert found.mean == pytest.approx(4 / 3)
    assert (found.low, found.high) == (means[0], means[-1])  # 1 of 27 resamples is more than 2.5%
    assert found == paired_difference([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])


def test_a_claim_needs_eight_seeds_and_an_interval_without_zero() -> None:
    up = np.linspace(0.5, 1.0, 8)
    assert paired_difference([0.0] * 7, up[:7].tolist()).words.startswith("not separated (7 of the 8")
    assert paired_difference([0.0] * 8, up.tolist()).words == "higher"
    assert paired_difference(up.tolist(), [0.0] * 8).words == "lower"
    assert paired_difference([0.0] * 8, [1.0, -1.0] * 4).words == "not separated"


def test_measures_and_page_of_recorded_runs(tmp_path: Path) -> None:
    changed = {
        "moe/changed_choices": np.tile([0.0, 0.1, 0.2, 0.3], 20),
        "data/mini_batch": np.tile([0.0, 1.0, 2.0, 3.0], 20),
        "optim/gradient_norm": np.linspace(1.0, 3.0, 80),
    }
    runs = {
        name: {
            seed: read_run(write_run(tmp_path / f"{name}{seed}", objective=name, seed=seed, changed=changed))
            for seed in (1, 2)
        }
        for name in ("GSPO", "GRPO")
    }
    values = {m.name: m.of(runs["GSPO"][1]) for m in MEASURES}
    assert values["largest gradient norm"] == 3.0
    assert values["routed choices that differ from the old policy's, mean"] == pytest.approx(0.2)
    text = page(runs, "gspo compare ...", "compare.png")
    assert "| | seed 1 | seed 2 | mean | than GSPO |" in text
    assert "| GRPO | 3 | 3 | 3 | +0 [+0, +0]: not separated (2 of the 8 seeds that a claim needs) |" in text
    assert "higher" not in text
    titles = [axes.get_title(loc="left") for axes in draw(runs).axes]
    assert "Routed choices unlike the old policy's" in titles


@pytest.mark.long  # every run starts its second rank as a command of its own
def test_runs_on_two_devices_follow_each_other(tmp_path: Path) -> None:
    argv = [
        "compare", f"--config={QUICKSTART}", f"--config={QUICKSTART.with_name('ddp.yaml')}", "--objectives=GSPO,GRPO",
        "--seeds=1", f"--output={tmp_path}", *SMALL, *UNTAUGHT, "--trainer.max_epochs=1", "--trainer.accelerator=cpu",
        "--trainer.devices=2",
    ]  # fmt: skip
    found = subprocess.run([sys.executable, "-m", "gspo_lightning", *argv], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    for name in ("GSPO", "GRPO"):
        assert (tmp_path / f"{name}-seed1" / "version_0" / "summary.json").is_file()


@pytest.mark.thorough
def test_two_objectives_two_seeds_and_nothing_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "compare", f"--config={QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1,2", f"--output={tmp_path}",
        *SMALL, *UNTAUGHT, "--trainer.max_epochs=1",
    ]  # fmt: skip
    assert main(argv) == 0
    assert (tmp_path / "compare.png").read_bytes()[:4] == b"\x89PNG"
    text = (tmp_path / "compare.md").read_text()
    assert "## Held-out accuracy after training" in text
    runs = sorted(tmp_path.glob("*-seed*/version_*"))
    assert [r.parent.name for r in runs] == ["GRPO-seed1", "GRPO-seed2", "GSPO-seed1", "GSPO-seed2"]
    rewards = [read_run(r).scalars["reward/mean"].values[0] for r in runs]
    assert rewards[:2] == rewards[2:]  # the same rollouts before the first update
    assert rewards[0] != rewards[1]
    before = [(r / "summary.json").stat().st_mtime_ns for r in runs]
    assert weights(runs[0]).keys() == weights(runs[2]).keys()
    capsys.readouterr()
    assert main(argv) == 0
    assert [(r / "summary.json").stat().st_mtime_ns for r in runs] == before
    assert (tmp_path / "compare.md").read_text() == text


@pytest.mark.thorough
def test_an_interrupted_run_of_a_comparison_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the last update of the first run; its weights end as those of the same run alone."""
    few = [*SMALL, *UNTAUGHT, "--trainer.max_epochs=2"]
    argv = ["compare", f"--config={QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1", f"--output={tmp_path}", *few]
    log = tmp_path / "log"
    moment = "gspo_lightning.training.module:GSPOModule.training_step:4"
    assert Command(argv, kill_at=moment, log=log).start().wait() == [-9], log.read_text()
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert f"GSPO, seed 1 (interrupted: goes on from {tmp_path / 'GSPO-seed1' / 'version_0'}" in said
    assert "step-00000002.ckpt)" in said
    alone = fit(tmp_path / "alone", *UNTAUGHT, "--model.objective=GSPO", "--seed_everything=1")
    mine, theirs = weights(alone), weights(tmp_path / "GSPO-seed1" / "version_0")
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.long
def test_a_killed_comparison_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed in the second run's second iteration; the same command again ends as one that nobody disturbed."""

    def argv(output: Path) -> list[str]:
        few = [*SMALL, *UNTAUGHT, "--trainer.max_epochs=3"]
        return ["compare", f"--config={QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1", f"--output={output}", *few]

    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    moment = "gspo_lightning.training.module:GSPOModule.training_step:10"  # 6 of GSPO, 4 of GRPO
    assert Command(argv(killed), kill_at=moment, log=log).start().wait() == [-9], log.read_text()
    (stopped,) = killed.glob("GRPO-seed1/version_*")
    (last,) = {path.resolve() for path in stopped.glob("checkpoints/last.ckpt")}
    assert last.name == "step-00000002.ckpt"
    assert main(argv(whole)) == 0
    capsys.readouterr()
    assert main(argv(killed)) == 0
    assert f"GRPO, seed 1 (interrupted: goes on from {last})" in capsys.readouterr().out
    assert list(killed.glob("GRPO-seed1/version_*")) == [stopped]
    for name in ("GSPO", "GRPO"):
        one, other = (root / f"{name}-seed1" / "version_0" for root in (whole, killed))
        mine, theirs = weights(one), weights(other)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        for tag, series in read_run(one).scalars.items():
            if not tag.startswith(("time/", "memory/", "throughput/")):
                assert read_run(other).scalars[tag].values.tolist() == series.values.tolist(), tag
    pages = [(root / "compare.md").read_text().replace(str(root), "") for root in (whole, killed)]
    assert pages[0] == pages[1]


@pytest.mark.long
def test_a_run_of_another_command_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command was stopped with a checkpoint, the second one before it had a checkpoint."""
    few = [*SMALL, *UNTAUGHT, "--trainer.max_epochs=2"]
    argv = ["compare", f"--config={QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1", f"--output={tmp_path}", *few]
    other = [*argv, "--model.optimizer.lr=1e-3"]
    log = tmp_path / "log"
    step = "gspo_lightning.training.module:GSPOModule.training_step"
    assert Command(argv, kill_at=f"{step}:3", log=log).start().wait() == [-9], log.read_text()
    assert Command(other, kill_at=f"{step}:1", log=log).start().wait() == [-9], log.read_text()
    assert main(other) == 0
    assert "(interrupted: starts from the beginning, for it has no checkpoint)" in capsys.readouterr().out
    made = sorted(tmp_path.glob("GSPO-seed1/version_*/summary.json"))
    assert [summary.parent.name for summary in made] == ["version_2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objectives=GSPO,GRPO"], ["--config", "missing"]),
        ([f"--config={QUICKSTART}", "--objectives=GSPO"], ["two or more"]),
        ([f"--config={QUICKSTART}", "--objectives=GSPO,GRPPO"], ["GRPPO", "GRPO"]),
        ([f"--config={QUICKSTART}", "--objectives=GSPO,GRPO", "--seeds=1,1"], ["--seeds", "1,1"]),
        (["--config=nowhere.yaml", "--objectives=GSPO,GRPO"], ["nowhere.yaml"]),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    arguments: list[str], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


def test_a_variant_has_a_folder_name_of_plain_characters() -> None:
    assert Variant("GRPO + replay (R2)", ()).folder == "GRPO-replay-R2"
