"""``gspo fit`` on families whose state is no plain cache of keys and values: exact, or refused by name."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.policy.tiny import character_tokenizer
from tests.runs import runs
from tools.models import tiny

SHORT = ["--data.max_response_tokens=16", "--data.evaluation.limit=4"]


def saved(family: str, folder: Path) -> str:
    """A tiny model of a family in transformers format, as a user has it."""
    tiny.build(family).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return f"--model.name_or_path={folder}"


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["qwen3_next", pytest.param("qwen3_5_text", marks=pytest.mark.long), "minimax"])
def test_a_model_with_states_is_trained_on_what_it_samples(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = runs.fit(tmp_path / "runs", saved(family, tmp_path / "model"), *runs.UNTAUGHT, *SHORT)
    seen = runs.scalars(run)
    assert len(seen["noise/sampler_logprob_gap"]) == 4
    assert max(value for _, value in seen["noise/sampler_logprob_gap"]) < 2e-5  # nats
    assert all(0 < value < float("inf") for _, value in seen["optim/gradient_norm"])
    by_generate = "decoded by transformers' generate" in caplog.text
    assert by_generate is (family == "minimax")  # which has a cache of its own


@pytest.mark.thorough("fit")
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_model_that_is_sampled_otherwise_than_trained_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RWKV knows no cache of transformers' kind; it used to be trained to the end on what it had not said."""
    argv = [
        command, f"--config={runs.QUICKSTART}", *runs.SMALL, f"--trainer.default_root_dir={tmp_path}",
        saved("rwkv", tmp_path / "model"), *runs.UNTAUGHT, *SHORT,
    ]  # fmt: skip
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "model.name_or_path: " in said
    assert "RwkvForCausalLM" in said
    assert said.count(" nats from whole rows") == 2  # of both ways to decode, each beside what training is off by
    assert "Traceback" not in said
