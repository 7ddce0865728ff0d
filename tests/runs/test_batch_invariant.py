"""``gspo fit`` with ``model.batch_invariant: true``: the sampler's numbers are training's, to the last bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests import ROOT
from tests.runs import runs

PRECISIONS = ["32-true", "bf16-mixed"]


def tokens_that_differ(batches: list[MiniBatch], *, precision: str, exact: bool, packed: bool) -> tuple[int, int]:
    """Of an untrained policy that is loaded again: other bits than the sampler reported, and tokens in all."""
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, batch_invariant=exact)).eval()
    policy.packed = packed
    parts: list[MicroBatch] = [part for batch in batches for part in batch.micro_batches]
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    different = total = 0
    for part in parts:
        with context, torch.no_grad():
            logprobs, _ = policy(part, 0.9)
        assert part.behaviour_logprobs is not None
        different += int((logprobs != part.behaviour_logprobs)[part.response_mask].sum())
        total += int(part.response_mask.sum())
    return different, total


@pytest.mark.thorough
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("exact", [True, False], ids=["on", "off"])
def test_an_independent_forward_pass_has_the_bits_that_the_sampler_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool, precision: str
) -> None:
    batches = runs.handed_out(monkeypatch)
    run = runs.fit(
        tmp_path, *runs.UNTAUGHT, f"--trainer.precision={precision}", f"--model.batch_invariant={str(exact).lower()}",
        "--data.temperature=0.9", "--data.max_tokens_per_micro_batch=100", "--model.old_logprobs=recompute",
    )  # fmt: skip
    first = batches[: len(batches) // 2]  # of the first iteration: sampled from the weights of the start
    for packed in (True, False):
        different, total = tokens_that_differ(first, precision=precision, exact=exact, packed=packed)
        assert total > 200
        assert different == 0 if exact else different > 0.2 * total
    noise = [value for _, value in runs.scalars(run)["noise/sampler_logprob_gap"]]
    assert len(noise) == 4
    assert all(value == 0 for value in noise) if exact else all(value > 0 for value in noise)
    assert runs.largest_difference(runs.weights(run), runs.untrained()) > 1e-4


@pytest.mark.thorough
def test_a_sampler_that_is_off_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gspo_lightning.rollouts.sampler import decode_batch

    own = decode_batch.logprobs_from_logits
    monkeypatch.setattr(decode_batch, "logprobs_from_logits", lambda *args: (own(*args)[0] + 1e-6, None))
    monkeypatch.setattr("gspo_lightning.rollouts.verify._check_bits", lambda *_: None)
    runs.fit(tmp_path, *runs.UNTAUGHT, "--model.batch_invariant=true", code=2)
    said = capsys.readouterr().err
    assert "model.batch_invariant: is true, but the sampler's log-probabilities differ from training's by" in said


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--data.rollouts=TransformersGenerate"], "TransformersGenerate samples by other code"),
        (["--model.name_or_path=tiny-qwen3-moe"], "has layers of type Qwen3MoeDecoderLayer"),
        (
            [f"--config={ROOT / 'configs' / 'fsdp2.yaml'}", "--trainer.accelerator=cpu", "--trainer.devices=1"],
            "but FSDP2Strategy gathers",
        ),
    ],
)
def test_runs_that_cannot_be_exact_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, "--model.batch_invariant=true", *options, code=2)
    said = capsys.readouterr().err
    assert "model.batch_invariant" in said
    assert reason in said
