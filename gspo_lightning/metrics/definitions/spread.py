"""The metrics of spread and size: responses, ratios by sign and place, what an update does to the weights, alarms.

Symbols: see ``definitions.py``.
"""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import FULL, MetricSpec

__all__ = ["BY_MINI_BATCH", "COLLAPSE", "RESPONSES", "SPREAD", "UPDATE"]

_RESPONSES = "Responses"
RESPONSES = (
    MetricSpec(
        "response/length_p<k>",
        "5th, 50th and 95th percentile of the number of tokens of the iteration's responses",
        "tokens",
        "move together; the 95th stays clear of data.max_response_tokens",
        "If only the 95th rises, some prompts run away: find them in samples.",
        _RESPONSES,
        when=FULL,
    ),
    MetricSpec(
        "response/length_max",
        "tokens of the longest response of the iteration",
        "tokens",
        "below data.max_response_tokens",
        "At the limit all the time: read the longest completion before raising the limit.",
        _RESPONSES,
        when=FULL,
    ),
    MetricSpec(
        "response/length_positive",
        "mean number of tokens of the responses with A > 0",
        "tokens",
        "near response/length; above it where longer answers are the better ones (quickstart, first iterations)",
        "Far from response/length_negative while the reward is flat: length itself is being rewarded or punished.",
        _RESPONSES,
        when=f"{FULL}; iterations with such responses",
    ),
    MetricSpec(
        "response/length_negative",
        "mean number of tokens of the responses with A < 0",
        "tokens",
        "near response/length",
        "Far above response/length_positive: wrong answers ramble; look at samples and at response/truncated.",
        _RESPONSES,
        when=f"{FULL}; iterations with such responses",
    ),
    MetricSpec(
        "response/length_histogram",
        "number of tokens of each response of the iteration",
        "tokens",
        "one hump, or two while the policy changes its way of answering",
        "A wall at data.max_response_tokens: responses are cut, see response/truncated.",
        _RESPONSES,
        kind="histogram",
        when=FULL,
    ),
    MetricSpec(
        "response/repetition",
        "mean over responses of the share of 4-grams of tokens that occurred before in the same response",
        "fraction",
        "below 0.05 (quickstart: 0 to 0.01); code and tables are higher, so compare with the start of the run",
        "If it climbs, the policy repeats itself: read samples; the reward probably pays for length or format.",
        _RESPONSES,
        when=FULL,
    ),
    MetricSpec(
        "response/distinct",
        "responses that differ from every other earlier one to their prompt / all responses of the iteration",
        "fraction",
        "near 1 for long answers; falls to 1 / G as short answers become certain",
        "If it falls while the reward does not rise, groups say the same G times: raise the temperature.",
        _RESPONSES,
    ),
)

_RATIO = "Ratio to the old policy"
SPREAD = (
    MetricSpec(
        "ratio/log_sequence_p50",
        "median of log s_i, from the histogram: the edge of its bin nearer to 0",
        "nats per token",
        "0 in the first update of an iteration, then within a few clip widths of it",
        "If the median itself leaves the clip range, the whole batch has moved: lower the learning rate.",
        _RATIO,
        when=FULL,
    ),
    MetricSpec(
        "ratio/log_sequence_<sign>_p<k>",
        "5th, 50th and 95th percentile of log s_i of the sequences with positive (negative) A, from the histogram",
        "nats per token",
        "positive ones above 0 and negative ones below: the update does what the advantages ask for",
        "If both move the same way, the batch moves as a whole and clipping throws away half of what it teaches.",
        _RATIO,
        when=f"{FULL}; updates with such sequences",
    ),
    MetricSpec(
        "ratio/log_token_p<k>",
        "1st, 50th and 99th percentile of the token log-ratios d, from their histogram",
        "nats",
        "a hundred times wider than log s_i; the 1st further out than the 99th, as unlikely tokens move most",
        "Beyond +-1 the policy has changed its mind about tokens within one iteration: lower the learning rate.",
        _RATIO,
        when=FULL,
    ),
    MetricSpec(
        "ratio/log_token_<sign>_p<k>",
        "the same of the tokens with positive (negative) A",
        "nats",
        "as ratio/log_token_p<k>; the 1st percentile of negative tokens is the widest",
        "If the negative side alone runs away, wrong answers are pushed down without bound: use dual_clip or GSPO.",
        _RATIO,
        when=f"{FULL}; updates with such tokens",
    ),
    MetricSpec(
        "ratio/histogram_<sign>",
        "counts of s_i over the sequences with positive (negative) A",
        "sequences",
        "positive to the right of 1, negative to the left, more so with every update of an iteration",
        "Both on one side: the update moves all sequences alike, see ratio/log_sequence_<sign>_p<k>.",
        _RATIO,
        kind="histogram",
        when=f"{FULL}; every model.histogram_every updates",
    ),
    MetricSpec(
        "ratio/token_histogram",
        "counts of the token ratio exp(d) over the response tokens of the update",
        "tokens",
        "one peak at 1 with tails to both sides",
        "Compare with ratio/histogram: one batch is calm as sequences and wild as tokens, which is GSPO's point.",
        _RATIO,
        kind="histogram",
        when=f"{FULL}; every model.histogram_every updates",
    ),
    MetricSpec(
        "ratio/token_histogram_<sign>",
        "counts of exp(d) over the tokens with positive (negative) A",
        "tokens",
        "as ratio/token_histogram",
        "A second peak far below 1 on the negative side is a set of tokens that are being unlearned together.",
        _RATIO,
        kind="histogram",
        when=f"{FULL}; every model.histogram_every updates",
    ),
)

BY_MINI_BATCH = (
    MetricSpec(
        "by_mini_batch/effective_sample_size_<k>",
        "ratio/effective_sample_size of the k-th mini-batch of an iteration, from 0",
        "fraction",
        "1 for k = 0, then falling a little with k",
        "If it falls below 0.9 at the last k, take fewer updates per rollout batch.",
        "By mini-batch",
        when=f"{FULL}; once an iteration",
    ),
    MetricSpec(
        "by_mini_batch/log_sequence_std_<k>",
        "ratio/log_sequence_std of the k-th mini-batch of an iteration, from 0",
        "nats per token",
        "0 for k = 0, then growing with k, about as sqrt(k)",
        "If it grows faster than k, the updates of an iteration build on each other: lower the learning rate.",
        "By mini-batch",
        when=f"{FULL}; once an iteration",
    ),
    MetricSpec(
        "by_mini_batch/clip_tokens_<k>",
        "clip/tokens of the k-th mini-batch of an iteration, from 0",
        "fraction",
        "0 for k = 0; at sequence level near its final value from k = 1 on",
        "If the last mini-batches lose nearly all tokens, their updates are for nothing: take fewer.",
        "By mini-batch",
        when=f"{FULL}; once an iteration",
    ),
    MetricSpec(
        "by_mini_batch/kl_old_new_k3_<k>",
        "kl/old_new_k3 of the k-th mini-batch of an iteration, from 0",
        "nats per token",
        "0 for k = 0, then growing with k, below 0.01 at the last",
        "If it grows from iteration to iteration at the same k, the steps become larger: lower the learning rate.",
        "By mini-batch",
        when=f"{FULL}; once an iteration",
    ),
)

_OPTIMIZATION = "Optimization"
UPDATE = (
    MetricSpec(
        "optim/gradient_spike",
        "optim/gradient_norm / median of the last 64 gradient norms above 0 before it",
        "1",
        "0.05 to 10; single spikes of 30 are seen in healthy runs (quickstart, seed 5: 26)",
        "Above 20 the collapse alarm rings; find the update's responses in dumps/ and read what was so surprising.",
        _OPTIMIZATION,
        when="model.metrics: full or basic",
    ),
    MetricSpec(
        "update/changed",
        "trainable weights that are different after the update / all (every k-th, about a million of them)",
        "fraction",
        "1 with float32 weights, but for embeddings of tokens that never occur",
        "Far below 1 the step is smaller than the weights' precision: use float32 weights with bf16-mixed.",
        _OPTIMIZATION,
        when=FULL,
    ),
    MetricSpec(
        "update/relative_norm",
        "L2 norm of the update / L2 norm of the weights before it (every k-th, about a million of them)",
        "1",
        "steady, about the learning rate x sqrt(weights) / L2 norm of the weights (quickstart: 1e-3 to 5e-3)",
        "If it grows, look at optim/lr and at the optimizer's second moments after a stretch of tiny gradients.",
        _OPTIMIZATION,
        when=FULL,
    ),
    MetricSpec(
        "weights/<part>",
        "L2 norm of the trainable weights of a part: embedding, head, norms, router, experts, attention, mlp, other",
        "1",
        "moves by a few per cent over a run",
        "If one part grows steadily, add weight decay or lower its learning rate; a jump follows a gradient spike.",
        _OPTIMIZATION,
        when=FULL,
    ),
)

COLLAPSE = (
    MetricSpec(
        "collapse/alarms",
        "signatures of collapse that are present after this update (docs/collapse.md), not only those just raised",
        "signatures",
        "0 throughout",
        "Read alarms.json in the run folder: which signature, since when, what to do; the batch is in dumps/.",
        "Collapse",
    ),
    MetricSpec(
        "collapse/rollbacks",
        "times that weights and optimizer were put back to a good checkpoint since the run began",
        "rollbacks",
        "0 throughout",
        "After one, compare the curves before and after; if it happens again, lower the learning rate for good.",
        "Collapse",
    ),
    MetricSpec(
        "alarms",
        "which signature, since when, what was seen, what was done, and where the batch is",
        "table",
        "empty throughout",
        "Follow its last column; gspo replay shows what the dumped update saw.",
        "Collapse",
        kind="text",
        when="runs with an alarm",
    ),
)
