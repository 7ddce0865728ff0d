"""Experts that stay on their ranks, on two gloo ranks, beside one process that has them all."""

from __future__ import annotations

from gspo_lightning.policy.tiny import tiny_config
from tests.policy.parallel.expert_ranks import LENGTHS, bytes_sent, differences
from tests.runs.ranks import two_ranks


def test_logits_and_gradients_are_those_of_one_process() -> None:
    layers = tiny_config("tiny-qwen3-moe").num_hidden_layers
    for found in two_ranks(differences):
        assert isinstance(found, dict), found
        assert found["weights"] == 2 * layers
        assert found["logits"] < 2e-6
        assert found["gradients"] < 2e-6


def test_tokens_travel_and_weights_do_not() -> None:
    config = tiny_config("tiny-qwen3-moe")
    token = config.num_hidden_layers * config.num_experts_per_tok * config.hidden_size * 4
    sent = two_ranks(bytes_sent)
    # there and back; backwards, the ranks that have the outputs send their gradients
    assert sum(count for count, _ in sent) == 4 * token * sum(LENGTHS)
    assert all(weights > 10 * count for count, weights in sent)
