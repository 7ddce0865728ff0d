"""The metrics of mixtures of experts. Besides the symbols: L layers, k of E experts a token."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Mean
from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["MOE"]

_WHEN = "mixtures of experts, unless `model.router_metrics: false`"

MOE = (
    MetricSpec(
        "moe/changed_choices",
        "(response token, layer) pairs for which live scores choose another set of experts than the rollout did "
        "(R2: than the old policy's forward pass did) / all pairs",
        "fraction",
        "0 in the first update of an iteration (float32), then growing with data/mini_batch; its value at "
        "data/mini_batch 1 is the effect of one update (paper: about 0.1; tiny MoE 0.02 to 0.15)",
        "If it jumps within an iteration, token ratios are between different networks: use a sequence-level objective, "
        "model.routing_replay, or a lower learning rate.",
        "Mixture of experts",
        when=_WHEN,
        reading=Mean("changed_choices"),
    ),
    MetricSpec(
        "moe/changed_experts",
        "experts of the rollout's choice (R2: the old policy's) that live scores do not choose any more / (pairs x k)",
        "fraction",
        "between moe/changed_choices / k and moe/changed_choices",
        "Read with moe/changed_choices: near it, whole sets of experts are exchanged.",
        "Mixture of experts",
        when=_WHEN,
        reading=Mean("changed_experts"),
    ),
    MetricSpec(
        "moe/changed_over_iteration",
        "moe/changed_choices after the last update of the iteration, on the first micro-batch of its last mini-batch",
        "fraction",
        "above the last moe/changed_choices of the iteration, by about one update's share",
        "If it stays above 0.3, the policy that samples next is routed unlike the one that was trained against.",
        "Mixture of experts",
        when="the last update of each iteration; " + _WHEN,
    ),
    MetricSpec(
        "moe/router_confidence",
        "mean over (response token, layer) of the best expert's share of all scores (of softmax for logits)",
        "fraction",
        "above 1 / E and below 1; it usually rises slowly with training",
        "Near 1 / E choices are a coin toss and change at every update; near 1 the router no longer explores.",
        "Mixture of experts",
        when=_WHEN,
        reading=Mean("router_confidence"),
    ),
    MetricSpec(
        "moe/load_max_violation",
        "mean over layers of E x (largest share of the routed response tokens that one expert got) - 1",
        "1",
        "0 is a perfect balance, E / k - 1 everything to the same k experts; on a narrow task 1 to 3 is usual",
        "If it climbs towards E / k - 1, experts starve: lower the learning rate of the router, or freeze it.",
        "Mixture of experts",
        when=_WHEN,
    ),
    MetricSpec(
        "moe/load_entropy",
        "mean over layers of the entropy of the experts' shares of routed response tokens / log E",
        "fraction",
        "1 is even, log k / log E everything to the same k experts",
        "A steady fall is the slow form of what moe/load_max_violation shows at once.",
        "Mixture of experts",
        when=_WHEN,
    ),
    MetricSpec(
        "moe/idle_experts",
        "(layer, expert) pairs that no response token of the update was routed to / (L x E)",
        "fraction",
        "near 0 with thousands of tokens per update; above 0 on a narrow task",
        "If it rises, parameters stay without a gradient: look at moe/load_entropy.",
        "Mixture of experts",
        when=_WHEN,
    ),
    MetricSpec(
        "moe/aux_loss",
        "E x sum over experts of (choices per (token, layer)) x (mean probability), prompts included, before "
        "model.router_aux_loss_coef",
        "1",
        "k at a perfect balance, up to E for everything to the same k experts with certainty",
        "If it stays far above k, raise the coefficient; if rewards stop rising with it, lower the coefficient.",
        "Mixture of experts",
        when="every update; only with model.router_aux_loss_coef above 0",
        reading=Mean("router_aux_loss"),
    ),
)
