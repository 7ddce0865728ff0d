"""The metrics of what clipping takes away."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Mean
from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["CLIP"]

CLIP = (
    MetricSpec(
        "clip/tokens",
        "response tokens whose clipped branch is taken, so that they have no gradient / all response tokens",
        "fraction",
        "sequence level with 3e-4/4e-4: 0.05 to 0.75 (paper about 0.15, quickstart 0.4 to 0.5); token level with 0.2: "
        "0.0005 to 0.02 (paper 0.0013); exactly 0 in the first update of an iteration",
        "If it is 0 in every update, there is one update per rollout or the clip range has a wrong scale.",
        "Clipping",
        reading=Mean("clip_fraction_tokens"),
    ),
    MetricSpec(
        "clip/sequences",
        "sequences whose clipped branch is taken (GSPO-token: the mean share of their tokens) / all sequences",
        "fraction",
        "near clip/tokens; the two differ where long and short responses are clipped unequally often",
        "If it is far above clip/tokens, short responses are clipped more: their s_i is noisier.",
        "Clipping",
        when="sequence-level objectives",
        reading=Mean("clip_fraction_sequences"),
    ),
    MetricSpec(
        "clip/low",
        "response tokens clipped at 1 - clip_low (A < 0 and already less likely) / all response tokens",
        "fraction",
        "quickstart, sequence level: a tenth of clip/tokens; token level: most of it, unlikely tokens move furthest",
        "If it dominates at sequence level, the policy mostly moves away from bad answers: widen clip_high.",
        "Clipping",
        when="objectives with a lower clip bound",
        reading=Mean("clip_fraction_low"),
    ),
    MetricSpec(
        "clip/high",
        "response tokens clipped at 1 + clip_high (A > 0 and already more likely) / all response tokens",
        "fraction",
        "quickstart, sequence level: most of clip/tokens, because good answers quickly become more likely as a whole",
        "If it dominates, good answers are held back; a larger clip_high keeps more of them.",
        "Clipping",
        when="objectives with an upper clip bound",
        reading=Mean("clip_fraction_high"),
    ),
    MetricSpec(
        "clip/tokens_positive",
        "clipped response tokens with A > 0 / response tokens with A > 0",
        "fraction",
        "at or above clip/tokens, whose denominator also holds the tokens of dead groups (A = 0)",
        "Compare with clip/tokens_negative: the larger one is the sign that the clip range throttles.",
        "Clipping",
        reading=Mean("clip_fraction_tokens_positive"),
    ),
    MetricSpec(
        "clip/tokens_negative",
        "clipped response tokens with A < 0 / response tokens with A < 0",
        "fraction",
        "at or above clip/tokens, for the same reason; noisy once few answers are wrong",
        "If it is far below clip/tokens_positive for long, mostly bad answers teach: widen clip_high.",
        "Clipping",
        reading=Mean("clip_fraction_tokens_negative"),
    ),
    MetricSpec(
        "clip/zero_gradient_tokens",
        "response tokens without a gradient: clipped, with A = 0, at the numerical limit, or masked by an option / all "
        "response tokens",
        "fraction",
        "clip/tokens plus the share of dead groups; below 0.9 while learning, 1 in an update with nothing to learn",
        "What is left, 1 minus this, is the share of the batch that teaches: if it is small, remove dead groups first.",
        "Clipping",
        reading=Mean("zero_gradient_tokens"),
    ),
)
