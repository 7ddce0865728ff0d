"""The metrics of the sources of a mixture."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["SOURCES"]

_MIXTURE = "data.train: Mixture"

SOURCES = (
    MetricSpec(
        "source/<name>/reward",
        "mean reward over the iteration's responses to prompts of the source that are not missing",
        "reward",
        "rises in each; the sources need not be paid alike",
        "If one falls while the others rise, they compete: raise its weight.",
        "Sources",
        when=_MIXTURE,
    ),
    MetricSpec(
        "source/<name>/length",
        "mean number of tokens that the policy chose in the iteration's responses to prompts of the source",
        "tokens",
        "as response/length, each on its own scale",
        "A source of long responses has the largest part of all tokens: compare with source/<name>/groups.",
        "Sources",
        when=_MIXTURE,
    ),
    MetricSpec(
        "source/<name>/dead_groups",
        "dead groups of the source / all its groups in the iteration",
        "fraction",
        "below 0.5 while it is learned; 1 is a source that is solved, or that is too hard",
        "Near 1 at a high reward lower its weight; at a low one give easier prompts, or use a curriculum.",
        "Sources",
        when=f"{_MIXTURE}; as reward/dead_groups",
    ),
    MetricSpec(
        "source/<name>/groups",
        "groups of the source that the iteration trains on",
        "groups",
        "the source's share of data.prompts_per_rollout, to the nearest whole one",
        "It is exact by construction; dead groups are replaced by others of the same source.",
        "Sources",
        when=_MIXTURE,
    ),
    MetricSpec(
        "source/<name>/clipped_tokens",
        "tokens of the source whose gradient was clipped away / all its tokens in the update",
        "fraction",
        "as clip/tokens; sources with short responses have the larger ratios and are clipped more often",
        "If one is clipped far more than the others, it learns less than its weight says.",
        "Sources",
        when=f"{_MIXTURE}; 0 or absent at model.metrics: off",
    ),
    MetricSpec(
        "val/source/<name>/accuracy",
        "val/accuracy over the held-out prompts of the source",
        "fraction",
        "rises in each",
        "One that falls is being forgotten: raise its weight.",
        "Sources",
        when="evaluations of several sources",
    ),
    MetricSpec(
        "val/source/<name>/reward",
        "val/reward over the held-out responses to prompts of the source",
        "reward",
        "follows source/<name>/reward",
        "A gap to training that grows is memory rather than skill.",
        "Sources",
        when="evaluations of several sources",
    ),
)
