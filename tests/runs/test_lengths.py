"""An evaluation that is longer than training: windows and rotary embeddings are chosen for the longest row of a run."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.training.cold_start import ColdStart
from tests.runs import runs
from tests.support.exact_families import SWITCH, exact_model
from tests.support.model_families import COMMON

PROMPT, TRAINED, EVALUATED = 8, 6, 24
LENGTHS = [
    f"--data.max_prompt_tokens={PROMPT}", f"--data.max_response_tokens={TRAINED}",
    f"--data.evaluation.max_response_tokens={EVALUATED}", "--data.evaluation.limit=4", "--trainer.max_epochs=1",
]  # fmt: skip


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """With no end-of-sequence token that it could write: every response is as long as it may be."""
    model.get_output_embeddings().weight.data[1] = 0.0
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def sliding() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**COMMON, sliding_window=PROMPT + TRAINED))


@pytest.mark.thorough("longrope")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (sliding, f"because of a sliding window of {PROMPT + TRAINED} tokens and rows of up to {PROMPT + EVALUATED}"),
        (lambda: exact_model("phi3"), f"longrope's long factors (they change beyond {SWITCH} positions)"),
    ],
    ids=["sliding window", "longrope"],
)
def test_an_evaluation_may_be_longer_than_training(
    model: object, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert PROMPT + TRAINED <= SWITCH < PROMPT + EVALUATED
    folder = saved(model(), tmp_path / "model")  # type: ignore[operator]
    with caplog.at_level(logging.INFO, logger="gspo_lightning"):
        run = runs.fit(tmp_path, *runs.UNTAUGHT, f"--model.name_or_path={folder}", *LENGTHS)
    assert said in caplog.text
    summary, scalars = runs.summary(run), runs.scalars(run)
    assert summary["updates"] == 2
    assert [step for step, _ in scalars["val/response_length"]] == [0, 2]
    assert max(value for _, value in scalars["val/response_length"]) > TRAINED
    assert all(math.isfinite(value) for _, value in scalars["val/accuracy"])
    assert scalars["ratio/mean"][0][1] == 1.0
    assert scalars["noise/sampler_logprob_gap"][0][1] < 1e-5


def test_a_cold_start_has_the_rotary_embeddings_of_its_run(tmp_path: Path) -> None:
    phi, other = saved(exact_model("phi3"), tmp_path / "phi"), saved(sliding(), tmp_path / "other")
    quick = ColdStart(ChainTask(split="cold_start", size=8), steps=1)
    keys = {quick.key(ModelSettings(str(phi)), longest) for longest in (SWITCH, 2 * SWITCH)}
    assert len(keys) == 2
    assert quick.key(ModelSettings(str(other)), SWITCH) == quick.key(ModelSettings(str(other)), 2 * SWITCH)
