"""``trainer.precision: 16-mixed``: one loss scale for all micro-batches, gradients that come out as without it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from gspo_lightning.loop.update.loss_scale import SMALLEST, overflows
from gspo_lightning.report.read import read_run
from tests.runs import runs

SGD = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.5", "--trainer.gradient_clip_val=0.2"]
CUT = ["--data.max_tokens_per_micro_batch=40"]
"""Several micro-batches an update: the last one's backward is Lightning's, those before it are ours."""


def plugin(scale: float) -> list[str]:
    return [
        f'--trainer.plugins={{"class_path": "tests.runs.scaled.ScaledFloat32", "init_args": {{"init_scale": {scale}}}}}'
    ]


def float16() -> list[str]:
    scaler = '{"class_path": "torch.amp.GradScaler", "init_args": {"device": "cpu"}}'
    given = f'{{"precision": "16-mixed", "device": "cpu", "scaler": {scaler}}}'
    return [f'--trainer.plugins={{"class_path": "lightning.pytorch.plugins.MixedPrecision", "init_args": {given}}}']


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("plain"), *runs.UNTAUGHT, *SGD, *CUT)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_scaled_losses_give_the_gradients_of_plain_ones(plain: Path, tmp_path: Path, strategy: str) -> None:
    scaled = runs.fit(tmp_path, *runs.UNTAUGHT, *SGD, *CUT, *plugin(2.0**12), f"--trainer.strategy={strategy}")
    assert runs.largest_difference(runs.weights(plain), runs.weights(scaled)) == 0.0  # powers of two are exact
    norms = series(plain, "optim/gradient_norm")
    assert series(scaled, "optim/gradient_norm") == norms
    assert max(norms) > 0.2  # clipping took part
    assert set(series(scaled, "optim/loss_scale")) == {2.0**12}


@pytest.mark.thorough
def test_a_scale_that_is_too_large_halves_and_changes_nothing(tmp_path: Path) -> None:
    """LUSPO's gradients, as long as responses, overflow float32 at 2^127 and at a few powers below."""
    run = runs.fit(
        tmp_path, *runs.UNTAUGHT, *SGD, *plugin(2.0**127), "--trainer.max_epochs=8", "--model.objective=LUSPO"
    )
    scales, norms = series(run, "optim/loss_scale"), series(run, "optim/gradient_norm")
    left_out = [norm == 0 for norm in norms]
    assert left_out[0]
    assert not left_out[-1]
    assert all(math.isfinite(norm) for norm in norms)
    for number, after in enumerate(scales[1:]):
        assert after == scales[number] / (2 if left_out[number] else 1)
    moved = series(run, "update/changed")
    assert all((share == 0) == out for share, out in zip(moved, left_out, strict=True))


def test_only_gradient_overflow_is_left_to_the_loss_scaler() -> None:
    sound = {"loss": 0.1, "gradient norm": math.inf, "largest ratio": 1.0}
    large, small = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, SMALLEST))
    assert overflows(large, sound)
    assert not overflows(small, sound)  # halving it has not helped
    assert not overflows(large, sound | {"gradient norm": 1.0})
    assert not overflows(large, sound | {"loss": math.nan})
    assert not overflows(large, sound | {"largest ratio": math.inf})


@pytest.mark.thorough
def test_a_run_in_float16(tmp_path: Path) -> None:
    """Real float16 forward and backward passes, and their noise is between float32's and bfloat16's."""
    noise = {}
    for name, precision in {"float16": float16(), "bfloat16": ["--trainer.precision=bf16-mixed"]}.items():
        run = runs.fit(tmp_path / name, *runs.UNTAUGHT, *precision, "--trainer.max_epochs=1", "--model.metrics=basic")
        noise[name] = series(run, "noise/sampler_logprob_gap")[0]
        assert all(math.isfinite(norm) and norm > 0 for norm in series(run, "optim/gradient_norm"))
        assert {weight.dtype for weight in runs.weights(run).values()} == {torch.float32}
    assert 1e-6 < noise["float16"] < noise["bfloat16"] / 2


@pytest.mark.thorough("arguments0-words0", "arguments2-words2")
@pytest.mark.parametrize(
    ("arguments", "words"),
    {
        "fused": (["--model.optimizer.fused=true"], ["model.optimizer.fused", "leave fused out"]),
        "critic": (["--config=critic"], ["trainer.precision", "model.critic"]),
        "shards": (["--config=fsdp2"], ["trainer.precision", "loss scale"]),
    }.values(),
)
def test_float16_refuses_fused_optimizers_critics_and_shards(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, *plugin(1.0), *arguments, code=2)
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def series(run: Path, tag: str) -> list[float]:
    found = read_run(run).get(tag)
    assert found is not None, tag
    return [float(value) for value in found.values]
