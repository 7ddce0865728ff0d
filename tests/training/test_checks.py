"""What is said before the first rollout: once, and where a model's own files mean another sampling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.data.prompts.specials import check_stop_tokens
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.training.checks import check_sampling
from tests.runs import runs


def test_a_generation_config_that_is_not_neutral_is_said(caplog: pytest.LogCaptureFixture) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3"))
    sampling = SamplingParams(8, 1.0, stop_token_ids=policy.eos_token_ids)
    with caplog.at_level("INFO", logger="gspo_lightning"):
        check_sampling(policy, sampling)
        assert not caplog.text
        policy.model.generation_config.temperature = 0.6
        policy.model.generation_config.top_p = 0.95
        check_sampling(policy, sampling)
    assert "generation_config (temperature 0.6, top_p 0.95) is not used" in caplog.text
    assert "at temperature 1;" in caplog.text


def test_a_stop_token_that_is_never_sampled_is_refused() -> None:
    check_stop_tokens([3, 4], unsaid=(5,))
    with pytest.raises(UserError, match=r"data\.stop_token_ids: holds 5, which never stops a response"):
        check_stop_tokens([3, 5], unsaid=(5,))


def test_one_update_per_rollout_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command line checks before anything is written, and Lightning's setup comes after it."""
    one = ["--data.minibatches_per_rollout=1", "--trainer.max_epochs=1", "--data.val=null"]
    runs.fit(tmp_path, *runs.UNTAUGHT, *one, "--trainer.num_sanity_val_steps=0")
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if text.startswith("one update per rollout batch")]) == 1
