"""The metrics of reward models (``gspo fit-reward``)."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["PREFERENCE"]

_GROUP = "Reward models"
_RUNS = "gspo fit-reward"
_EVALUATIONS = "gspo fit-reward: evaluations"

PREFERENCE = (
    MetricSpec(
        "reward_model/loss",
        "mean over the pairs of an update of -log sigmoid(r_c - r_r - m) + center_rewards_coefficient (r_c + r_r)^2",
        "nats per pair",
        "log 2 = 0.693 at the start, where every reward is 0; then falls",
        "If it stays at 0.693, raise the learning rate; far below reward_model/val_loss, train for fewer epochs.",
        _GROUP,
        when=_RUNS,
    ),
    MetricSpec(
        "reward_model/accuracy",
        "pairs of an update whose chosen answer has the higher reward / all of them; a tie counts 1/2",
        "fraction",
        "0.65 to 0.8 on people's preferences, who agree with each other in about as many pairs",
        "Near 1 on people's preferences means that pairs are remembered, or that a length gives the answer away.",
        _GROUP,
        when=_RUNS,
    ),
    MetricSpec(
        "reward_model/margin",
        "mean over the pairs of an update of r_c - r_r",
        "reward (log-odds)",
        "rises to a few units",
        "If it keeps rising while reward_model/val_accuracy does not, the model is sure of what it has remembered.",
        _GROUP,
        when=_RUNS,
    ),
    MetricSpec(
        "reward_model/reward",
        "mean reward over both answers of the pairs of an update",
        "reward (log-odds)",
        "near 0 with center_rewards_coefficient 0.01; without it it drifts, which differences do not see",
        "If it drifts and the reward is to be added to others, set model.center_rewards_coefficient: 0.01.",
        _GROUP,
        when=_RUNS,
    ),
    MetricSpec(
        "reward_model/val_accuracy",
        "as reward_model/accuracy, over all held-out pairs; results.json has its interval by prompt",
        "fraction",
        "rises, then stays",
        "If it falls while reward_model/accuracy rises, train for fewer epochs.",
        _GROUP,
        when=_EVALUATIONS,
    ),
    MetricSpec(
        "reward_model/val_loss",
        "mean over held-out pairs of -log sigmoid(r_c - r_r - m)",
        "nats per pair",
        "below 0.693",
        "If it rises while reward_model/val_accuracy stays, the model is too sure: see reward_model/val_ece.",
        _GROUP,
        when=_EVALUATIONS,
    ),
    MetricSpec(
        "reward_model/val_margin",
        "mean over held-out pairs of r_c - r_r",
        "reward (log-odds)",
        "above 0",
        "Far below reward_model/margin the model has remembered pairs: train for fewer epochs.",
        _GROUP,
        when=_EVALUATIONS,
    ),
    MetricSpec(
        "reward_model/val_ece",
        "expected calibration error: mean over held-out pairs of |accuracy - confidence| of their bin, confidence = "
        "sigmoid(|r_c - r_r|), ten bins of equal width from 0.5 to 1",
        "fraction",
        "below 0.05; with N pairs chance alone gives about 1 / sqrt(N)",
        "If it is high, train for fewer epochs: sigmoid of a difference is not the share that people prefer.",
        _GROUP,
        when=_EVALUATIONS,
    ),
)
