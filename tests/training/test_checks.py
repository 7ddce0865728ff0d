"""What a model's own files would change about sampling is said, and changes nothing."""

from __future__ import annotations

import pytest

from gspo_lightning.policy.loading import load_policy
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.training.checks import check_sampling
from gspo_lightning.types import SamplingParams


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
