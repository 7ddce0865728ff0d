"""Collapse provoked in real runs of a taught model: which alarm rings, how soon, and what is done about it."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.loop.update.dump import Dump
from gspo_lightning.objectives import GSPO
from gspo_lightning.training.callbacks import checkpoints
from gspo_lightning.training.callbacks.collapse import SIGNATURES
from tests.runs import runs
from tests.runs.test_async_save import hold, keeping

AT = 3
"""The iteration before whose rollout something goes wrong, from 0."""
SIZE = [
    "--data.prompts_per_rollout=32", "--data.group_size=4", "--data.minibatches_per_rollout=2",
    "--data.reward_workers=1", "--data.max_response_tokens=24", "--data.val=null", "--trainer.num_sanity_val_steps=0",
    "--trainer.enable_progress_bar=false", "--model.optimizer=torch.optim.AdamW", "--model.optimizer.lr=1e-5",
]  # fmt: skip
OPTIONS = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0"]


def collapse(**arguments: Any) -> str:
    """The callback as one argument; no picture is drawn."""
    summary = {"class_path": "RunSummary", "init_args": {"report": False}}
    return "--trainer.callbacks=" + json.dumps([{"class_path": "Collapse", "init_args": arguments}, summary])


def inject(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Do something to the module before the rollout of iteration :data:`AT`."""
    original = Iteration.run

    def run(self: Iteration, number: int) -> Any:
        if number == AT:
            with torch.no_grad():
                change(self.state)
        return original(self, number)

    monkeypatch.setattr(Iteration, "run", run)


def head(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.policy.model.get_output_embeddings().weight
    return weight


def sure_and_wrong(module: Any) -> None:
    digits = module.tokenizer("0123456789", add_special_tokens=False)["input_ids"]
    head(module)[digits] = head(module)[digits].roll(1, dims=0)
    head(module).mul_(50.0)


def flatten(module: Any) -> None:
    head(module).mul_(0.1)


def never_end(module: Any) -> None:
    head(module)[[1, 2]] = head(module)[[2, 1]]  # <eos> is as likely as <unk> was


def cut_short(module: Any) -> None:
    module.data.iteration.settings = replace(module.data.settings, max_response_tokens=2)


def race(module: Any) -> None:
    module.trainer.optimizers[0].param_groups[0]["lr"] = 0.1


def pay_for_repetition(module: Any) -> None:
    module.data.runner.weights = {"correct": 0.0, "echo": 1.0}
    module.trainer.optimizers[0].param_groups[0]["lr"] = 1e-2


def unlearn(module: Any) -> None:
    for p in module.policy.parameters():
        p.mul_(0.3)


def loud(module: Any) -> None:
    module.objective = Loud()


class Loud(GSPO):
    """Gradients a thousand times too large."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = super().__call__(*args, **kwargs)
        out.loss = out.loss * 1000
        return out


ECHO = [
    f"--plugins={Path(__file__).with_name('graded.py')}", '--data.rewards={"correct": "ExactMatch", "echo": "Echo"}',
    '--data.reward_weights={"correct": 1, "echo": 0}', "--model.objective=GRPO", "--data.minibatches_per_rollout=8",
]  # fmt: skip
"""A second reward that pays nothing at first."""
PROVOKED: dict[str, tuple[Callable[[Any], None], set[str]]] = {
    "certain": (sure_and_wrong, {"entropy_collapse"}),
    "dissolved": (flatten, {"entropy_explosion", "reward_collapse", "dead_group_flood"}),
    "endless": (never_end, {"length_runaway", "reward_collapse", "dead_group_flood"}),
    "cut": (cut_short, {"length_collapse", "reward_collapse"}),
    "racing": (race, {"ratio_explosion"}),
    "loud": (loud, {"gradient_spikes"}),
    "echoing": (pay_for_repetition, {"repetition"}),
}


def alarms(run: Path) -> list[dict[str, Any]]:
    file = run / "alarms.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return found


QUICK = ("certain",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PROVOKED]
)
def test_a_provoked_collapse_rings_within_five_iterations(
    name: str, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, expected = PROVOKED[name]
    inject(monkeypatch, change)
    options, per_iteration = (ECHO, 8) if name == "echoing" else ([], 2)
    run = runs.fit(taught, *SIZE, *options, collapse(), f"--trainer.max_epochs={AT + 5}", small=False)
    found = {a["signature"]: a for a in alarms(run)}
    assert expected <= found.keys()
    first = per_iteration * AT + 1
    for signature in expected:
        assert first <= found[signature]["since"] <= found[signature]["update"] <= first + per_iteration * 5 - 1
    scalars = runs.scalars(run)["collapse/alarms"]
    assert all(value == 0 for step, value in scalars if step < first)
    assert max(value for _, value in scalars) >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("large", [False, True], ids=["every iteration has a checkpoint", "only the first one has"])
def test_a_rollback_goes_on_from_before_the_collapse(
    taught: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], large: bool
) -> None:
    inject(monkeypatch, unlearn)
    monkeypatch.setattr(checkpoints, "SMALL", 0 if large else checkpoints.SMALL)
    options = [*SIZE, collapse(action="rollback"), "--trainer.max_epochs=8"]
    run = runs.fit(taught, *options, small=False)
    good = 2 if large else 2 * AT
    assert f"rolled back (1 of at most 2): weights and optimizer are those of step-{good:08d}.ckpt" in " ".join(
        capsys.readouterr().err.split()
    )
    assert {a["action"] for a in alarms(run)} == {"rolled back"}
    scalars = runs.scalars(run)
    recognised = min(a["update"] for a in alarms(run))
    reward, rate, count = (dict(scalars[tag]) for tag in ("reward/mean", "optim/lr", "collapse/rollbacks"))
    assert reward[recognised] < 0.1, "the collapse was real"
    assert reward[recognised + 1] > 0.25, "and it is gone in the very next rollouts"
    assert (rate[recognised], rate[recognised + 1]) == pytest.approx((1e-5, 5e-6))
    assert (count[recognised], count[16]) == (0, 1)
    assert [step for step, _ in scalars["reward/mean"]] == list(range(1, 17)), "the clock was not turned back"
    assert not [a for a in alarms(run) if a["update"] > recognised]


def poison(monkeypatch: pytest.MonkeyPatch, at: int = 3) -> None:
    """The loss of one update is not finite."""
    original, calls = GSPO.__call__, []

    def poisoned(self: GSPO, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        calls.append(1)
        out.loss = out.loss * (float("nan") if len(calls) == at else 1.0)
        return out

    monkeypatch.setattr(GSPO, "__call__", poisoned)


@pytest.mark.thorough
def test_a_fall_of_held_out_accuracy_goes_back_to_the_best_evaluation(
    taught: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if no checkpoint since then would be kept, and nothing else is suspicious."""
    others = sorted(set(SIGNATURES) - {"held_out_fall"})
    evaluated = ["--data.evaluation.limit=512", "--trainer.check_val_every_n_epoch=1", "--trainer.max_epochs=6"]
    inject(monkeypatch, sure_and_wrong)
    run = runs.fit(taught, "--model.optimizer.lr=1e-6", *evaluated, collapse(action="rollback", ignore=others))
    (alarm,) = json.loads((run / "alarms.json").read_text())
    accuracy = dict(runs.scalars(run)["val/accuracy"])
    best = max(step for step in (0, 2, 4, 6) if accuracy[step] == max(accuracy[s] for s in (0, 2, 4, 6)))
    assert (alarm["signature"], alarm["update"], alarm["since"], alarm["dump"]) == ("held_out_fall", 8, best + 1, "")
    assert alarm["what"].endswith("n = 512 paired prompts")
    assert f"those of step-{best:08}.ckpt" in capfd.readouterr().err
    assert accuracy[8] < 0.5 * accuracy[best] < accuracy[10]  # restored after update 10, before its evaluation


@pytest.mark.thorough
def test_after_a_fall_in_the_last_evaluation_nothing_is_rolled_back(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = sorted(set(SIGNATURES) - {"held_out_fall"})
    evaluated = ["--data.evaluation.limit=512", "--trainer.check_val_every_n_epoch=1", "--trainer.max_epochs=4"]
    inject(monkeypatch, sure_and_wrong)
    run = runs.fit(taught, "--model.optimizer.lr=1e-6", *evaluated, collapse(action="rollback", ignore=others))
    (alarm,) = json.loads((run / "alarms.json").read_text())
    assert (alarm["signature"], alarm["update"], alarm["action"]) == ("held_out_fall", 8, "warned")


@pytest.mark.thorough
def test_a_skipped_nan_is_an_alarm_and_stop_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(monkeypatch)
    run = runs.fit(tmp_path, *OPTIONS, "--model.on_nonfinite=skip", collapse(action="stop"), code=1)
    assert "stopped: collapse: non finite since update 3, recognised at 3" in capsys.readouterr().err
    (alarm,) = alarms(run)
    assert (alarm["signature"], alarm["action"], alarm["since"]) == ("non_finite", "stopped", 3)
    assert runs.checkpoint(run)["global_step"] == 2
    assert Dump.read(run / alarm["dump"]).update == 3
    texts = runs.events(run).Tensors("alarms/text_summary")
    assert b"non_finite" in texts[-1].tensor_proto.string_val[0]


@pytest.mark.thorough
def test_a_rollback_waits_for_a_checkpoint_that_a_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(monkeypatch, at=5)
    hold(monkeypatch)
    more = [keeping(async_save=True), "--trainer.max_epochs=4"]
    runs.fit(tmp_path, *OPTIONS, "--model.on_nonfinite=skip", collapse(action="rollback"), *more)
    said = " ".join(capsys.readouterr().err.split())
    assert "rolled back (1 of at most 2): weights and optimizer are those of step-00000004.ckpt" in said


@pytest.mark.thorough
def test_rollbacks_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(monkeypatch)
    arguments = collapse(action="rollback", max_rollbacks=0)
    run = runs.fit(tmp_path, *OPTIONS, "--model.on_nonfinite=skip", arguments, code=1)
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped: collapse: non finite since update 3, recognised at 3 (stopped)" in said
    assert "rolled back" not in said
    assert [(alarm["update"], alarm["action"]) for alarm in alarms(run)] == [(3, "stopped")]


def test_without_a_checkpoint_from_before_it_a_rollback_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(monkeypatch, at=1)
    run = runs.fit(tmp_path, *OPTIONS, "--model.on_nonfinite=skip", collapse(action="rollback"), code=1)
    assert "stopped; no checkpoint is from before it: collapse: non finite since update 1" in capsys.readouterr().err
    assert [(alarm["update"], alarm["action"]) for alarm in alarms(run)] == [(1, "stopped")]


@pytest.mark.thorough
def test_a_nan_that_stops_the_run_by_itself_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    run = runs.fit(tmp_path, *OPTIONS, code=1)
    (alarm,) = alarms(run)
    assert (alarm["signature"], alarm["update"], alarm["dump"]) == ("non_finite", 3, "dumps/update-00000003.pt")


@pytest.mark.thorough
def test_watching_changes_nothing_and_a_resumed_run_raises_the_same_alarms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ears_shut = {"repetition.level": 2.0, "dead_group_flood.dead": 2.0}
    untaught = [*OPTIONS, "--data.prompts_per_rollout=4"]
    thresholds = {"ratio_explosion.spread": 1e-9, "gradient_spikes.factor": 0.0}  # everything is alarming
    watched = runs.fit(tmp_path / "a", *untaught, collapse(thresholds=thresholds), "--trainer.max_epochs=4")
    calm = runs.fit(tmp_path / "b", *untaught, collapse(ignore=["gradient_spikes"], thresholds=ears_shut),
                    "--trainer.max_epochs=4")  # fmt: skip
    assert {a["signature"] for a in alarms(watched)} == {"ratio_explosion", "gradient_spikes"}
    assert [stat.S_IMODE(dump.stat().st_mode) for dump in (watched / "dumps").iterdir()] == [0o600, 0o600]
    assert runs.largest_difference(runs.weights(watched), runs.weights(calm)) == 0.0
    part = runs.fit(tmp_path / "c", *untaught, collapse(thresholds=thresholds), "--trainer.max_epochs=1")
    assert not alarms(part), "the looks are there, the alarms are not yet"
    runs.fit(tmp_path / "c", *untaught, collapse(thresholds=thresholds), "--trainer.max_epochs=4", "--ckpt_path=last")
    assert alarms(part) == alarms(watched)
    capsys.readouterr()
    assert main(["replay", str(part / alarms(part)[0]["dump"])]) == 0
    said = capsys.readouterr().out
    recorded, again = (
        dict(part.rsplit(" ", 1) for part in line.split(": ", 1)[1].split(", ")) for line in said.splitlines()[::3]
    )
    for name in ("loss", "optim/gradient_norm", "policy/entropy"):
        assert float(again[name]) == pytest.approx(float(recorded[name]), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ignore": ["entropy"]}, "'entropy' is not a signature; did you mean entropy_"),
        ({"thresholds": {"repetition.levle": 0.5}}, "did you mean repetition.level"),
        ({"lr_factor": 0.0}, "must be above 0"),
        ({"max_rollbacks": -1}, "must be 0 or above"),
    ],
)
def test_mistakes_name_the_field(
    arguments: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *OPTIONS, collapse(**arguments), code=2)
    assert message in capsys.readouterr().err
