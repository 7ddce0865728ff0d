"""Models that are loaded by several threads are what one thread would have loaded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import PreTrainedModel

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy


def tied(policy: Policy) -> bool:
    return policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight


def test_tied_weights_stay_tied_when_threads_load_at_once(tmp_path: Path) -> None:
    """Loads of transformers replace a method of every model while they run, and would restore each other's."""
    settings = ModelSettings("tiny-qwen3", config_overrides={"tie_word_embeddings": True})
    load_policy(settings).save_pretrained(tmp_path)
    tie = PreTrainedModel.tie_weights
    try:
        with ThreadPoolExecutor(4) as pool:
            policies = list(pool.map(lambda _: load_policy(ModelSettings(str(tmp_path))), range(24)))
        assert PreTrainedModel.tie_weights is tie
        assert all(map(tied, [*policies, load_policy(settings)]))
    finally:
        PreTrainedModel.tie_weights = tie
