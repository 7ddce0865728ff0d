"""The metrics of evaluations on held-out prompts."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["EVALUATION"]

EVALUATION = (
    MetricSpec(
        "val/accuracy",
        "avg@k: mean over held-out prompts of c/n, c of n sampled responses having an accuracy reward of 1 or more",
        "fraction",
        "rises; with P prompts and one sample its standard error is sqrt(p (1 - p) / P), 0.02 at P = 512 and p = 0.3",
        "If it stays behind reward/mean the policy memorises or exploits the reward: read the completions.",
        "Evaluation",
        when="evaluations: step 0 and every k iterations",
    ),
    MetricSpec(
        "val/pass@<k>",
        "mean over held-out prompts of 1 - C(n-c, k) / C(n, k): the unbiased chance that one of k responses is correct",
        "fraction",
        "at or above val/accuracy; a gap that closes means the policy became consistent rather than more able",
        "If it falls while val/accuracy rises, diversity is being traded for consistency.",
        "Evaluation",
        when="evaluations with more than one sample per prompt",
    ),
    MetricSpec(
        "val/lowest_score",
        "the smallest value of the accuracy reward among the held-out responses",
        "reward",
        "0, and 1 at the very end, for a reward that is 0 or 1",
        "Below 0 the reward is not an accuracy: reports show val/reward instead, unless "
        "data.evaluation.accuracy_reward names the reward.",
        "Evaluation",
        when="evaluations",
    ),
    MetricSpec(
        "val/highest_score",
        "the largest value of the accuracy reward among the held-out responses",
        "reward",
        "1 as soon as one answer is right",
        "Above 1 the reward is not an accuracy, as for val/lowest_score; 0 means that no answer is right.",
        "Evaluation",
        when="evaluations",
    ),
    MetricSpec(
        "val/reward",
        "mean reward over the held-out responses that are not missing, at the evaluation's own temperature",
        "reward",
        "follows reward/mean",
        "If it differs from val/accuracy, another reward part than correctness is being earned.",
        "Evaluation",
        when="evaluations",
    ),
    MetricSpec(
        "val/response_length",
        "mean number of tokens of the held-out responses, the end token included",
        "tokens",
        "follows response/length",
        "A large difference to training comes from the evaluation's temperature or its own length limit.",
        "Evaluation",
        when="evaluations",
    ),
    MetricSpec(
        "val/terminated",
        "held-out responses that ended by themselves / all held-out responses",
        "fraction",
        "above 0.95: an accuracy is only meant for answers that end",
        "If it is low, raise the evaluation's max_response_tokens before comparing accuracies.",
        "Evaluation",
        when="evaluations",
    ),
    MetricSpec(
        "suite/<name>/<metric>",
        "a metric of a benchmark in data.suites, as gspo evaluate counts it (docs/evaluation.md)",
        "fraction",
        "avg@k and pass@k rise; truncated and no_answer fall",
        "Thirty problems move by several points by chance: compare two checkpoints with gspo evaluate --compare.",
        "Evaluation",
        when="evaluations, with data.suites",
    ),
)
