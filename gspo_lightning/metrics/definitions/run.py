"""The metrics of a run's course: its data, samples and speed."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["COLD_START", "DATA", "SPEED"]

DATA = (
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
        "1 if memory allows it; the number never changes a gradient",
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
        "held_out_answers",
        "the first 8 held-out prompts with their answers, rewards, tokens and finish reasons at an evaluation; "
        "held_out_answers.jsonl in the run folder has them all",
        "table",
        "answers that change for a reason, not only their score",
        "Move the slider of the steps: it shows what the policy learns before any curve explains it.",
        "Data",
        kind="text",
        when="runs with held-out prompts",
    ),
    MetricSpec(
        "sample_pictures",
        "the samples with thumbnails of the pictures of their prompts beside them, up to three each",
        "sheet",
        "answers that fit what is seen",
        "If answers fit the text alone, the policy may guess without looking: compare with shuffled pictures.",
        "Data",
        kind="picture",
        when="prompts with pictures",
    ),
    MetricSpec(
        "held_out_pictures",
        "held_out_answers with thumbnails of the pictures beside them; they are also in pictures/ of the run folder",
        "sheet",
        "answers that fit what is seen",
        "Move the slider of the steps: the same pictures with the answers of each evaluation.",
        "Data",
        kind="picture",
        when="held-out prompts with pictures",
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

COLD_START = (
    MetricSpec(
        "cold_start/loss",
        "minus the mean log-probability of the tokens that are learnt, over the steps since the last point; at most "
        "about 200 points, whose x axis counts up to -1, the step before the first update",
        "nats per token",
        "falls steeply, then slowly: from the logarithm of the vocabulary's size if the model is new",
        "If it stays high, give model.cold_start more steps or another learning rate.",
        "Cold start",
        when="runs that begin with a cold start",
    ),
    MetricSpec(
        "cold_start/held_out_loss",
        "the same over demonstrations that are not learnt: one in 20 (256 at most), measured about 20 times",
        "nats per token",
        "stays close to cold_start/loss",
        "If it rises while cold_start/loss falls, the model learns the demonstrations by heart: fewer steps, or more "
        "demonstrations.",
        "Cold start",
        when="cold starts from a file of 200 demonstrations or more",
    ),
)

SPEED = (
    MetricSpec(
        "throughput/generated_tokens_per_s",
        "response tokens of the iteration over all ranks / time/rollout_s",
        "tokens per second",
        "steady; falls as responses get longer and their lengths more unequal",
        "If it collapses, one endless response delays the batch: see response/truncated.",
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
        "throughput/server_idle_share",
        "mean over servers of the share of wall time since the last iteration's rollout in which a server had no "
        "request in flight; of the rank where it is smallest",
        "fraction",
        "small where sampling and training overlap; time/update_s and rewards are idle time where they alternate",
        "If it is high, set data.max_staleness: 1, which samples the next iteration while this one is trained on.",
        "Speed",
        when="VLLMServer",
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
