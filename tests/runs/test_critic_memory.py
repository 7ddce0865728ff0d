"""A critic's update that does not fit into memory is made again in smaller pieces, as the policy's are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.critic import ValueModel
from tests.runs import runs
from tests.runs.processes import Command
from tests.runs.test_critic import CRITIC, critic_state
from tests.runs.test_invariance import SGD

OPTIONS = [
    *runs.UNTAUGHT, *CRITIC, *SGD, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--model.critic.epochs=2",
]  # fmt: skip
ROWS = 4
"""Rows that fit into memory below: an allocation of an exabyte fails in the real allocator."""


def small_memory() -> None:
    own = ValueModel._loss

    def limited(self: ValueModel, part: MicroBatch, *rest: Any) -> Any:
        if part.input_ids.shape[0] > ROWS:
            torch.empty(1 << 60)
        return own(self, part, *rest)

    ValueModel._loss = limited  # type: ignore[method-assign]


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValueModel, "_loss", ValueModel._loss)  # restored afterwards
    small_memory()


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], pytest.param(["--model.layout=padded"], marks=pytest.mark.long)], ids=str)
def test_the_update_is_that_of_a_roomier_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = runs.fit(tmp_path / "whole", *OPTIONS, *more)
    with monkeypatch.context() as patched:
        patched.setattr(ValueModel, "_loss", ValueModel._loss)
        small_memory()
        run = runs.fit(tmp_path / "small", *OPTIONS, *more)
    error = capsys.readouterr().err
    assert "out of memory in critic update 1: a micro-batch of 16 rows and" in error
    assert error.count("again with a token budget of") < 4  # remembered
    remembered = json.loads((run / "memory.json").read_text())
    assert (remembered["configured"], remembered["budget"] < 200) == (4096, True)
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) < 1e-4
    mine, theirs = runs.scalars(run), runs.scalars(whole)
    for tag in ("critic/loss", "critic/gradient_norm", "critic/updates", "critic/value_mean", "loss"):
        for (_, a), (_, b) in zip(mine[tag], theirs[tag], strict=True):
            assert a == pytest.approx(b, abs=1e-4, rel=1e-4), tag
    assert mine["critic/gradient_norm"][0][1] == pytest.approx(theirs["critic/gradient_norm"][0][1], rel=1e-4)
    first, second = (critic_state(r)["trunk"] for r in (run, whole))
    assert first.keys() == second.keys()
    for name in first:  # Adam makes a whole step of a rounding: lr is 1e-3
        assert float((first[name]["weight"] - second[name]["weight"]).abs().max()) < 2e-3


def test_a_row_that_does_not_fit_is_a_clear_stop(
    tmp_path: Path, small_machine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "ROWS", 0)
    runs.fit(tmp_path, *OPTIONS, code=1)
    error = capsys.readouterr().err
    assert "out of memory in critic update 1: a micro-batch of 1 rows" in error
    assert "fix: lower data.max_response_tokens" in error
    assert "Traceback" not in error


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_on_two_ranks_it_stops_both_and_the_resume_fits(tmp_path: Path, strategy: str) -> None:
    argv = [
        "fit", f"--config={runs.QUICKSTART}", f"--config={runs.ROOT / 'configs' / strategy}.yaml", *runs.SMALL,
        f"--trainer.default_root_dir={tmp_path}", *OPTIONS, "--model.optimizer.momentum=0.9",
        "--trainer.accelerator=cpu", "--trainer.devices=2", "--ckpt_path=last",
    ]  # fmt: skip
    log = tmp_path / "log"
    codes = Command(argv, 2, log=log, prepare=small_memory).start().wait(240)
    assert 0 not in codes
    assert "out of memory in critic update 1" in log.read_text()
    assert "fix: resume with --ckpt_path last, which takes" in log.read_text()
    again, tries = [1, 1], 0
    while again != [0, 0] and tries < 4:  # each halves the budget once more
        again, tries = Command(argv, 2, log=log, prepare=small_memory).start().wait(240), tries + 1
    assert again == [0, 0], log.read_text()
