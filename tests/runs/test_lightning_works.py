"""Options and callbacks of Lightning's that work here in their own way (docs/lightning.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import Strategy
from transformers import AutoModelForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.training import build
from tests.runs import runs
from tests.runs.of_a_user import Gradients, Watches
from tests.runs.test_lightning_refused import PLATEAU, callback, stopping

LR = 0.003
FAST = [
    *runs.UNTAUGHT, f"--model.optimizer.lr={LR}", "--trainer.check_val_every_n_epoch=1", "--data.evaluation.limit=32",
    "--data.evaluation.temperature=1.0",
]  # fmt: skip
BLIND = [*runs.UNTAUGHT, f"--model.optimizer.lr={LR}", "--data.val=null", "--trainer.num_sanity_val_steps=0"]
WATCHED = '{"class_path": "tests.runs.of_a_user.Watches"}'


def averaging(name: str, arguments: str = "{}") -> list[str]:
    chosen = f'{{"class_path": "{name}", "init_args": {arguments}}}'
    return [f"--trainer.callbacks=[{chosen}, {WATCHED}]"]


EMA = averaging("EMAWeightAveraging", '{"decay": 0.5}')


def averaged(weights: list[dict[str, torch.Tensor]], decay: float) -> dict[str, torch.Tensor]:
    """By hand: the first weights, then a share of each."""
    found = dict(weights[0])
    for now in weights[1:]:
        found = {name: decay * found[name] + (1 - decay) * now[name] for name in found}
    return found


def current(run: Path) -> dict[str, torch.Tensor]:
    """The weights that a run of averages goes on with."""
    return runs.checkpoint(run)["state_dict"] | runs.checkpoint(run)["current_model_state"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("plain"), *FAST, "--trainer.max_epochs=3")


@pytest.fixture(scope="module")
def ema(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, torch.Tensor]]]:
    """A run and its weights after every update."""
    run = runs.fit(tmp_path_factory.mktemp("ema"), *FAST, *EMA, "--trainer.max_epochs=3")
    return run, list(Watches.seen)


Ema = tuple[Path, list[dict[str, torch.Tensor]]]


@pytest.mark.thorough
def test_an_average_is_that_of_the_weights_after_every_update(ema: Ema) -> None:
    run, seen = ema
    found, expected = runs.weights(run), averaged(seen, 0.5)
    assert len(seen) == 6
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    assert runs.largest_difference({n: found[n] for n in seen[-1]}, seen[-1]) > 1e-4


@pytest.mark.thorough
def test_gradients_take_no_memory_while_responses_are_sampled(tmp_path: Path) -> None:
    Gradients.seen.clear()
    counts = '--trainer.callbacks=[{"class_path": "tests.runs.of_a_user.Gradients"}]'
    runs.fit(tmp_path, *BLIND, counts, "--trainer.max_epochs=2")  # Lightning itself frees them for an evaluation
    seen = Gradients.seen
    assert len(seen["update"]) == 4
    assert min(seen["update"]) > 0
    assert seen["rollouts"] == [0, 0]


@pytest.mark.thorough
def test_training_does_not_notice_its_average(plain: Path, ema: Ema) -> None:
    run, _ = ema
    state = runs.checkpoint(plain)["state_dict"]
    assert all(torch.equal(state[name], current(run)[name]) for name in state)
    mine, theirs = runs.scalars(run), runs.scalars(plain)
    assert mine.keys() == theirs.keys()
    for tag in mine:
        assert (mine[tag] == theirs[tag]) or tag.startswith("val/"), tag


@pytest.mark.thorough
def test_evaluations_and_exports_are_of_the_average(
    plain: Path, ema: Ema, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = ema
    held_out = {tag: values for tag, values in runs.scalars(run).items() if tag.startswith("val/")}
    without = {tag: values for tag, values in runs.scalars(plain).items() if tag.startswith("val/")}
    assert held_out.keys() == without.keys()
    assert {tag: v[0] for tag, v in held_out.items()} == {tag: v[0] for tag, v in without.items()}  # before training
    assert held_out["val/reward"][-1] != without["val/reward"][-1]
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "model")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    exported = {f"policy.model.{name}": tensor for name, tensor in model.state_dict().items()}
    assert runs.largest_difference(exported, runs.weights(run)) == 0.0
    # an evaluation of that model, by a run that has never seen an average, is the last one of the run
    fresh = runs.fit(tmp_path / "fresh", *FAST, f"--model.name_or_path={tmp_path / 'model'}", "--trainer.max_epochs=1")
    assert {tag: v[0][1] for tag, v in runs.scalars(fresh).items() if tag in held_out} == {
        tag: v[-1][1] for tag, v in held_out.items()
    }


@pytest.mark.thorough
def test_an_average_goes_on_bit_for_bit(ema: Ema, tmp_path: Path) -> None:
    run, _ = ema
    runs.fit(tmp_path, *FAST, *EMA, "--trainer.max_steps=3")  # in the middle of an iteration
    resumed = runs.fit(tmp_path, *FAST, *EMA, "--trainer.max_epochs=3", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(run)) == 0.0
    assert runs.largest_difference(current(resumed), current(run)) == 0.0
    assert runs.scalars(resumed)["val/reward"][-1] == runs.scalars(run)["val/reward"][-1]


@pytest.mark.thorough
def test_a_run_goes_on_without_its_average(plain: Path, tmp_path: Path) -> None:
    runs.fit(tmp_path, *FAST, *EMA, "--trainer.max_epochs=2")
    resumed = runs.fit(tmp_path, *FAST, "--trainer.max_epochs=3", "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(resumed), runs.weights(plain)) == 0.0
    assert "current_model_state" not in runs.checkpoint(resumed)


@pytest.mark.thorough
def test_adapters_and_snapshots_are_not_mistaken_for_one_another(tmp_path: Path) -> None:
    options = [
        *BLIND, "--model.lora={r: 4}", "--model.old_policy=ResidentSnapshot", "--model.old_policy.refresh_every=2",
    ]  # fmt: skip
    mean = averaging("WeightAveraging")
    run = runs.fit(tmp_path, *options, *mean)
    seen = list(Watches.seen)
    expected = {name: torch.stack([w[name] for w in seen]).mean(0) for name in seen[0]}
    found, policy = runs.checkpoint(run)["state_dict"], runs.weights(run)
    assert policy.keys() == expected.keys() == runs.checkpoint(run)["current_model_state"].keys()
    assert max(float((policy[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    snapshot = {name: w for name, w in found.items() if name.startswith("old_policy.")}
    start = {name.replace("policy.model", "old_policy.snapshot.model"): w for name, w in seen[0].items()}
    assert snapshot.keys() == start.keys()  # of the first iteration: nothing was averaged into it
    assert all(float(w.abs().max()) == 0.0 for name, w in snapshot.items() if "lora_B" in name)


@pytest.mark.thorough
def test_a_plateau_lowers_the_rate_with_the_iteration_and_after_a_resume(tmp_path: Path) -> None:
    never_better = {"patience": 0, "factor": 0.5, "threshold": 1e9, "threshold_mode": "abs", "mode": "max"}
    options = [
        *FAST, *PLATEAU, "--model.lr_scheduler.monitor=reward/mean",
        *(f"--model.lr_scheduler.{name}={value}" for name, value in never_better.items()),
    ]  # fmt: skip
    whole = runs.fit(tmp_path / "whole", *options, "--trainer.max_epochs=4")
    rates = [rate for _, rate in runs.scalars(whole)["optim/lr"]]
    assert rates == pytest.approx([LR, LR, LR, LR, LR / 2, LR / 2, LR / 4, LR / 4])  # the first is always the best
    runs.fit(tmp_path / "parts", *options, "--trainer.max_epochs=2")
    resumed = runs.fit(tmp_path / "parts", *options, "--trainer.max_epochs=4", "--ckpt_path=last")
    assert [rate for _, rate in runs.scalars(resumed)["optim/lr"]] == rates
    assert runs.largest_difference(runs.weights(resumed), runs.weights(whole)) == 0.0


@pytest.mark.thorough
def test_a_plateau_of_evaluations_steps_with_them_and_takes_a_new_rate(tmp_path: Path) -> None:
    options = [
        *FAST, *PLATEAU, "--model.lr_scheduler.monitor=val/response_length", "--model.lr_scheduler.patience=0",
        "--model.lr_scheduler.factor=0.5", "--model.lr_scheduler.threshold=1e9",
        "--model.lr_scheduler.threshold_mode=abs", "--trainer.check_val_every_n_epoch=2",
    ]  # fmt: skip
    run = runs.fit(tmp_path, *options, "--trainer.max_epochs=4")
    assert [rate for _, rate in runs.scalars(run)["optim/lr"]] == pytest.approx([LR] * 8)  # one to compare with
    resumed = runs.fit(
        tmp_path, *options, "--trainer.max_epochs=5", "--ckpt_path=last",
        "--model.optimizer.lr=0.0004", "--allow_changed_config=true",
    )  # fmt: skip
    assert runs.scalars(resumed)["optim/lr"][-1] == (10, pytest.approx(0.0004))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["reward/mean", "loss"])
def test_early_stopping_can_watch_what_updates_measure(name: str, tmp_path: Path) -> None:
    never_better: dict[str, Any] = {"patience": 1, "mode": "max", "min_delta": 1e9}
    options = [*BLIND, "--trainer.max_epochs=5", "--trainer.check_val_every_n_epoch=2"]
    run = runs.fit(tmp_path, *options, *stopping(name, **never_better))
    assert [step for step, _ in runs.scalars(run)["loss"]] == [1, 2, 3, 4]  # best, not better: stop


@pytest.mark.thorough
def test_the_checkpoints_of_another_callback_stay(tmp_path: Path) -> None:
    every = callback("ModelCheckpoint", monitor="reward/mean", mode="max", save_top_k=-1, every_n_epochs=1)
    run = runs.fit(tmp_path, *BLIND, *every, "--trainer.max_epochs=4")
    names = sorted(p.name for p in (run / "checkpoints").glob("*.ckpt") if not p.is_symlink())
    assert names == [
        "epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt", "epoch=2-step=6.ckpt", "epoch=3-step=8.ckpt",
        "step-00000006.ckpt", "step-00000008.ckpt",
    ]  # fmt: skip


@pytest.mark.thorough
def test_a_run_that_only_max_steps_ends_samples_ahead(tmp_path: Path) -> None:
    options = [*BLIND, "--data.max_staleness=1", "--trainer.max_epochs=-1", "--trainer.max_steps=6"]
    ages = [age for _, age in runs.scalars(runs.fit(tmp_path, *options))["staleness/mean_age"]]
    assert ages == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]  # updates: an iteration has two


@pytest.mark.thorough
def test_one_callback_needs_no_list(tmp_path: Path) -> None:
    one = '--trainer.callbacks={"class_path": "LearningRateMonitor"}'
    run = runs.fit(tmp_path, *BLIND, one, "--trainer.max_epochs=1")
    assert [value for _, value in runs.scalars(run)["lr-AdamW"]] == pytest.approx([LR] * 3)  # an epoch's start, too


@pytest.mark.thorough
def test_other_progress_bars_a_throughput_and_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = '{"class_path": "ThroughputMonitor", "init_args": {"batch_size_fn": "tests.runs.of_a_user.rows"}}'
    both = [f'--trainer.callbacks=[{{"class_path": "TQDMProgressBar"}}, {monitor}]']
    run = runs.fit(tmp_path / "bars", *FAST, *both, "--trainer.max_epochs=1")
    samples = [(e.step, e.value) for e in runs.events(run).Scalars("train/samples")]
    assert [value for _, value in samples] == [16.0, 32.0]
    root = tmp_path / "dry"
    runs.fit(root, *FAST, "--trainer.fast_dev_run=1")
    assert runs.summary(root)["updates"] == 1
    assert not list(root.rglob("events.*"))


def test_only_weights_are_made_where_lightning_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside its context every tensor is on the GPU: a check of attention failed there, and rows were padded."""
    inside, seen = [False], dict[str, bool]()
    context = Strategy.tensor_init_context

    @contextmanager
    def watched(strategy: Strategy, empty_init: bool | None = None) -> Iterator[None]:
        with context(strategy, empty_init):
            inside[0] = True
            yield
        inside[0] = False

    def noting(name: str) -> None:
        function = getattr(build, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            seen[name] = inside[0]
            return function(*arguments, **options)

        monkeypatch.setattr(build, name, noted)

    monkeypatch.setattr(Strategy, "tensor_init_context", watched)
    for name in ("load_policy", "check_head", "routers_of", "choose_layout"):
        noting(name)
    runs.fit(tmp_path, *BLIND, "--trainer.max_epochs=1")
    assert seen == {"load_policy": True, "check_head": False, "routers_of": False, "choose_layout": False}
