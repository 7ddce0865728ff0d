"""What every logged number is: its exact definition, its unit, what is healthy and what to do when it is not.

Symbols: A an advantage, m the response tokens, n_i the number of response tokens of sequence i, d = log pi - log
pi_old per token, s_i = exp(sum_m d / n_i), r the ratio that the objective clips (s_i or exp d). Sums run over all
micro-batches and ranks of an update before anything is divided. Rendered to ``docs/metrics.md`` by
``python -m gspo_lightning.metrics.table``; the numbers quoted as the paper's are from arXiv 2507.18071.
"""

from __future__ import annotations

from gspo_lightning.metrics.definitions.experts import MOE
from gspo_lightning.metrics.definitions.ratio import CLIP, DRIFT, RATIO
from gspo_lightning.metrics.definitions.spec import FULL, MetricSpec
from gspo_lightning.metrics.definitions.spread import BY_MINI_BATCH, COLLAPSE, RESPONSES, SPREAD, UPDATE

__all__ = ["METRICS"]

_REWARD = (
    MetricSpec(
        "reward/mean",
        "mean reward over the iteration's responses that are not missing",
        "reward",
        "rises; wobbles by about std / sqrt(responses) from one iteration to the next, because the prompts change",
        "If it stays flat, look at samples and reward/dead_groups before touching the learning rate.",
        "Reward",
    ),
    MetricSpec(
        "reward/std",
        "sqrt(mean(R^2) - mean(R)^2) over the iteration's responses that are not missing",
        "reward",
        "above 0: without a spread there is nothing to compare; for a 0/1 reward it is sqrt(p (1 - p)), at most 0.5",
        "At 0 all responses earn the same: make the prompts easier or harder, or the reward finer.",
        "Reward",
    ),
    MetricSpec(
        "reward/min",
        "smallest reward of the iteration's responses that are not missing",
        "reward",
        "the reward of a wrong answer, until there is none left",
        "If it is above what a wrong answer should earn, read the sample: something is paid for nothing.",
        "Reward",
        when=FULL,
    ),
    MetricSpec(
        "reward/max",
        "largest reward of the iteration's responses that are not missing",
        "reward",
        "the reward of a right answer, from the first iterations on",
        "If it stays below that, no response is ever right and nothing points the way: start from easier prompts.",
        "Reward",
        when=FULL,
    ),
    MetricSpec(
        "reward/histogram",
        "rewards of the iteration's responses that are not missing",
        "reward",
        "two peaks for a 0/1 reward, the upper one growing",
        "One peak that does not move: all responses earn the same and there is nothing to compare.",
        "Reward",
        kind="histogram",
        when=FULL,
    ),
    MetricSpec(
        "reward/advantage_histogram",
        "advantages of the iteration's responses",
        "advantage",
        "around 0, a bar at exactly 0 for dead groups; with normalisation within a group rarely beyond +-3",
        "A long tail on one side is one response in many that differs: a larger group tells if it was luck.",
        "Reward",
        kind="histogram",
        when=FULL,
    ),
    MetricSpec(
        "reward/parts/<name>",
        "mean of the reward part <name>, unweighted, over the responses for which it is not missing",
        "reward",
        "moves with reward/mean; a part that rises while the others fall is being exploited",
        "If a cheap part (format, length) outruns the one that counts, lower its weight.",
        "Reward",
    ),
    MetricSpec(
        "reward/dead_groups",
        "groups whose rewards are all equal, or of which fewer than two are present / all groups of the iteration",
        "fraction",
        "below 0.5 while learning; rises towards 1 as prompts become solved, which is success and not collapse",
        "If it is high at a low reward/mean, use easier prompts or larger groups; at a high one, harder prompts.",
        "Reward",
    ),
    MetricSpec(
        "reward/missing",
        "responses that could not be scored (worker lost, server down) / all responses of the iteration",
        "fraction",
        "0: a missing response is masked, so every one is lost work",
        "Above 0 look at the log for the infrastructure error; a wrong answer is never missing, it has reward 0.",
        "Reward",
    ),
    MetricSpec(
        "reward/masked",
        "responses left out because they were cut (data.truncated_responses: mask) / all responses",
        "fraction",
        "0 unless masking is chosen; then it is response/truncated",
        "If it is high, most of the work is thrown away: raise data.max_response_tokens.",
        "Reward",
    ),
    MetricSpec(
        "reward/model_errors",
        "responses with a reward part that could not judge the answer and gave 0 / all responses",
        "fraction",
        "near 0 once the format is learnt",
        "Look at samples: the answers are probably not in the form the reward expects.",
        "Reward",
    ),
    MetricSpec(
        "reward/timeouts",
        "responses with a reward part that ran into its deadline and gave 0 / all responses",
        "fraction",
        "near 0; every one costs the deadline in CPU time",
        "If it rises, the policy has found slow answers: shorten what the reward has to read, or look at samples.",
        "Reward",
    ),
    MetricSpec(
        "reward/resampled_groups",
        "dead groups of this rank that were replaced by groups of other prompts",
        "groups",
        "falls or rises with reward/dead_groups, up to data.resample_dead_groups",
        "At its limit the budget is spent: the prompts are too easy or too hard.",
        "Reward",
        when="data.resample_dead_groups above 0",
    ),
)

_RESPONSE = (
    MetricSpec(
        "response/length",
        "mean number of tokens that the policy chose in the iteration's responses, the end token included",
        "tokens",
        "any slow trend (the quickstart goes from 8 to 20 because writing the steps pays); jumps are not healthy",
        "If it runs to the limit while reward/mean does not rise, read samples for repetition.",
        "Responses",
    ),
    MetricSpec(
        "response/turns",
        "mean number of turns of the policy in the iteration's conversations; 1 where responses are no conversations",
        "turns",
        "falls where fewer turns earn more, rises where asking (a tool, for a hint) pays",
        "If it runs to max_turns while reward/mean does not rise, read samples: the policy may not find an end.",
        "Responses",
    ),
    MetricSpec(
        "response/terminated",
        "responses that ended with an end token or a stop string / all responses of the iteration",
        "fraction",
        "above 0.9: a response without an end usually has no answer to score",
        "If it falls, raise data.max_response_tokens or check that the end token is the one the model was taught.",
        "Responses",
    ),
    MetricSpec(
        "response/truncated",
        "responses cut at data.max_response_tokens / all responses of the iteration = 1 - response/terminated",
        "fraction",
        "below 0.1, for the same reason",
        "Raise data.max_response_tokens; truncated responses teach the policy to be short rather than to be right.",
        "Responses",
    ),
)

_OPTIMIZATION = (
    MetricSpec(
        "loss",
        "the objective's loss of the whole mini-batch, summed over micro-batches and ranks",
        "advantage",
        "around 0, often exactly 0 in the first update of an iteration while the gradient is not; it does not fall",
        "Do not read progress from it: look at reward/mean and val/accuracy.",
        "Optimization",
    ),
    MetricSpec(
        "optim/gradient_norm",
        "L2 norm of the gradient of all trainable parameters, before clipping",
        "1",
        "up to 10 times its median (quickstart: 3 to 9); larger spikes are the first sign of an unstable run",
        "If spikes repeat, lower the learning rate or use a sequence-level ratio; gradient clipping only hides them.",
        "Optimization",
    ),
    MetricSpec(
        "optim/lr",
        "learning rate of the first parameter group in this update",
        "1",
        "what the scheduler was asked for",
        "With bfloat16 weights and a rate below 1e-5 nothing moves: keep float32 weights and use bf16-mixed.",
        "Optimization",
    ),
)

_DATA = (
    MetricSpec(
        "data/iteration",
        "number of the rollout batch that the update trains on, from 0",
        "iterations",
        "goes up by one every minibatches_per_rollout x epochs_per_rollout updates",
        "Use it to read the x axis: a saw-tooth with this period is the policy moving away from its snapshot.",
        "Data",
    ),
    MetricSpec(
        "data/tokens_per_update",
        "tokens of the mini-batch over all ranks, prompts included, padding not",
        "tokens",
        "steady, or moving with response/length",
        "If it doubles, so does the time of an update: check response/length and response/truncated.",
        "Data",
    ),
    MetricSpec(
        "data/micro_batches",
        "forward and backward passes of this rank's mini-batch",
        "micro-batches",
        "1 where the memory allows it; the number never changes a gradient",
        "If it is high while memory is free, raise data.max_tokens_per_micro_batch.",
        "Data",
    ),
    MetricSpec(
        "data/mini_batch",
        "position of the mini-batch in its rollout batch, from 0",
        "index",
        "counts up to the updates per iteration and starts again",
        "Plot ratio/* and clip/* against it: how far the policy moves away within an iteration.",
        "Data",
    ),
    MetricSpec(
        "samples",
        "prompt, completion, answer, reward, advantage, tokens and finish reason of some responses of the iteration",
        "table",
        "completions that a person would have scored the same way",
        "Read it first when any curve looks odd.",
        "Data",
        kind="text",
    ),
    MetricSpec(
        "how_to_read",
        "a page that says which tab answers which question, written at the start",
        "text",
        "there once, and once more for every resume",
        "Start there.",
        "Data",
        kind="text",
    ),
)

_NOISE = (
    MetricSpec(
        "staleness/stale_tokens",
        "share of response tokens of the iteration that earlier weights sampled",
        "fraction",
        "below 0.5 in partial rollouts; 1 with rollouts ahead of training",
        "If it is high, lower data.prompts_in_flight.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
    MetricSpec(
        "staleness/mean_age",
        "mean over response tokens of the optimizer steps between the weights that sampled it and those of now",
        "optimizer steps",
        "at most the updates of one iteration",
        "If the reward falls while it grows, lower data.max_carry or data.max_staleness.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
    MetricSpec(
        "staleness/max_age",
        "the age of the oldest response token",
        "optimizer steps",
        "at most data.max_carry (or data.max_staleness) iterations",
        "See staleness/mean_age.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
    MetricSpec(
        "noise/sampler_logprob_gap",
        "mean over response tokens of abs(sampler's log-prob - the trainer's old log-prob)",
        "nats per token",
        "below 1e-6 in float32; 1e-3 in bfloat16 is usual and is why old log-probs are recomputed",
        "If it exceeds 0.01 the sampler is not the policy: check the temperature, stale weights and dropout.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
    MetricSpec(
        "noise/sampler_sequence_gap",
        "mean over sequences of abs(mean over their response tokens of the trainer's old log-prob - the sampler's)",
        "nats per token",
        "below a tenth of the clip range: only then can the sampler's log-probs serve as the old ones",
        "If it is above that, leave model.old_logprobs at auto: they are recomputed.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
    MetricSpec(
        "noise/sampler_logprob_rms",
        "root of the mean over response tokens of (sampler's log-prob - the trainer's)^2",
        "nats per token",
        "below a tenth of the clip range of a token-level objective: model.old_logprobs: auto then saves a pass",
        "See noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
    MetricSpec(
        "noise/sampler_sequence_rms",
        "root of the mean over sequences of (mean over response tokens of sampler's log-prob - the trainer's)^2",
        "nats per token",
        "below a tenth of the clip range of a sequence-level objective: model.old_logprobs: auto then saves a pass",
        "See noise/sampler_sequence_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
    MetricSpec(
        "noise/kl_sampler_old_k1",
        "mean over response tokens of the sampler's log-prob - the old log-prob",
        "nats per token",
        "0 up to rounding",
        "If it is not, the sampler's weights or settings are not the trainer's: see noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
    MetricSpec(
        "noise/kl_sampler_old_k3",
        "mean over response tokens of exp(x) - 1 - x with x = old log-prob - the sampler's, never negative",
        "nats per token",
        "0 up to rounding",
        "If it is not, the sampler's weights or settings are not the trainer's: see noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
    ),
)

_SPEED = (
    MetricSpec(
        "throughput/generated_tokens_per_s",
        "response tokens of the iteration over all ranks / time/rollout_s",
        "tokens per second",
        "steady; falls as responses get longer and their lengths more unequal",
        "If it collapses, one endless response holds up the batch: see response/truncated.",
        "Speed",
    ),
    MetricSpec(
        "throughput/trained_tokens_per_s",
        "data/tokens_per_update / time/update_s",
        "tokens per second",
        "steady",
        "If it is low, raise data.max_tokens_per_micro_batch so that fewer, larger passes are made.",
        "Speed",
    ),
    MetricSpec(
        "time/rollout_s",
        "wall time of the iteration's generation",
        "seconds",
        "usually the larger part of an iteration",
        "If it dominates by far, use a faster rollout source, or more updates per rollout if the clip fraction allows.",
        "Speed",
    ),
    MetricSpec(
        "time/reward_s",
        "wall time of scoring the iteration's responses",
        "seconds",
        "small against time/rollout_s",
        "If it is not, give the rewards more worker processes or a shorter timeout.",
        "Speed",
    ),
    MetricSpec(
        "time/update_s",
        "wall time of one update: forward and backward of all micro-batches, reduction and optimizer step",
        "seconds",
        "proportional to data/tokens_per_update",
        "A single slow update is usually a checkpoint or another process; a trend is response/length.",
        "Speed",
    ),
)

_EVALUATION = (
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
)

_OBJECTIVE = (
    MetricSpec(
        "objective/<name>",
        "sum / count over the mini-batch of what an objective measures beyond this table, such as clip_fraction_dual",
        "see the objective",
        "see the objective's description in gspo list objectives",
        "Look it up there; an objective of your own may report any number of them.",
        "Of single objectives",
        when="objectives and options that report more",
    ),
)

METRICS: tuple[MetricSpec, ...] = (
    *_REWARD, *_RESPONSE, *RESPONSES, *RATIO, *SPREAD, *BY_MINI_BATCH, *CLIP, *DRIFT, *_OPTIMIZATION, *UPDATE, *_DATA,
    *COLLAPSE, *_NOISE, *_SPEED, *_EVALUATION, *_OBJECTIVE, *MOE,
)  # fmt: skip
"""Every tag of a run, in the order of the document."""
