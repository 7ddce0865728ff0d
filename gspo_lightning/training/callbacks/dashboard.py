"""TensorBoard dashboard of a run: histograms, tables of samples, and a layout of charts with its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.loop.metrics.sums import RATIO_EDGES
from gspo_lightning.training.callbacks.folder import gspo_module
from gspo_lightning.training.callbacks.sheet import Answer, thumbnails
from gspo_lightning.training.callbacks.sink import Sink

RATIO_BINS = np.append(0.0, np.exp(np.append(RATIO_EDGES.numpy(), RATIO_EDGES[-1] + 1.0)))
"""Bin edges of a ratio, [bins + 1]; those of its logarithm are ``RATIO_EDGES``, and the outer two bins are open."""

DISTRIBUTIONS = {
    "reward/histogram": "reward",
    "reward/advantage_histogram": "advantage",
    "response/length_histogram": "length",
}
"""Tag -> name of the values per response of an iteration."""

SAMPLE_COLUMNS = ("shown as", "prompt", "completion", "answer", "reward", "advantage", "tokens", "finish")
Chart = list[str | list[str]]
GUIDE = """\
**Where to look.** In TensorBoard, the tab *Custom Scalars* is arranged as questions: does it learn, is it stable, how
far does the policy move, what does clipping take away. *Histograms* show `s_i` (`ratio/histogram`) and the token
ratios, by the sign of the advantage, and rewards and lengths. *Text* has `samples`: read them first when a curve looks
odd; `alarms` are there once a collapse was recognised. *Images* has `sample_pictures` where prompts have pictures.

**What is misread most.** The loss is around 0 by construction: read `reward/mean` and `val/accuracy`. GSPO clips about
half of all tokens, and that is healthy. Ratios, KL and clip fractions are a saw-tooth: every iteration starts from a
fresh snapshot. Falling entropy and growing length are health while the reward rises with them.

Every tag is defined, with its healthy range and what to do outside of it, in `docs/metrics.md`.
"""


class Dashboard(Callback):
    """Writes the layout, histograms of ratios, rewards and lengths, and ``samples`` to the loggers that can show them.

    If prompts have pictures, it also writes ``sample_pictures``: the same samples beside their pictures.

    Args:
        samples_every: iterations between two sample tables; None writes them at evaluations (every 10 iterations if
            there are none).
    """

    def __init__(self, samples_every: int | None = None) -> None:
        self.samples_every = samples_every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the layout of the charts and the page that explains them."""
        module = gspo_module(pl_module)
        data = module.data
        charts = layout(
            routers=module.policy.routing is not None,
            reference=module.reference is not None,
            staleness=data.partial is not None or data.settings.max_staleness > 0,
        )
        sink = Sink.of(trainer)
        sink.layout(charts)
        sink.text("how_to_read", GUIDE, trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Write histograms and samples under the number of updates so far."""
        module = gspo_module(pl_module)
        loader = module.data.loader
        sink = Sink.of(trainer)
        step = trainer.global_step
        if histograms_due(step, step, module.histogram_every):
            for tag, counts in module.update_metrics.histograms.items():
                sink.counts(tag, np.asarray(counts), RATIO_BINS, step)
        if loader.trained != 1:  # the rest is per iteration, and written with its first update
            return
        last = step + module.data.settings.updates_per_iteration - 1
        if histograms_due(step, last, module.histogram_every):
            for tag, name in DISTRIBUTIONS.items():
                values = loader.experience.distributions.get(name, ())
                sink.values(tag, np.asarray(values, dtype=np.float64), step)
        evaluations_every = trainer.check_val_every_n_epoch if module.data.val is not None else 10
        samples_every = self.samples_every or evaluations_every or 1
        if loader.iteration == 0 or (loader.iteration + 1) % samples_every == 0:
            self._write_samples(sink, loader.experience.examples, step, pictures=trainer.is_global_zero)

    def _write_samples(self, sink: Sink, examples: Sequence[Mapping[str, Any]], step: int, *, pictures: bool) -> None:
        rows = [sample_row(example) for example in examples]
        sink.table("samples", SAMPLE_COLUMNS, rows, step, code=("prompt", "completion", "answer"))
        if pictures:
            answers = [_answer(example, row) for example, row in zip(examples, rows, strict=True)]
            sink.sheet("sample_pictures", answers, step)


def histograms_due(first: int, last: int, every: int) -> bool:
    """True if an update from ``first`` to ``last`` writes histograms: the run's first, and every ``every``-th.

    >>> [step for step in range(1, 9) if histograms_due(step, step, 4)]
    [1, 4, 8]
    >>> histograms_due(5, 8, 7), histograms_due(1, 1, 0)
    (True, False)
    """
    return every > 0 and (first == 1 or last // every > (first - 1) // every)


def sample_row(example: Mapping[str, Any]) -> list[str]:
    """Return the cells of :data:`SAMPLE_COLUMNS`: why a sample is shown, its texts, reward and advantage."""
    return [
        example.get("shown_as", ""),
        example["prompt"],
        example["completion"],
        example["answer"],
        "missing" if example["reward"] is None else f"{example['reward']:.3g}",
        f"{example['advantage']:+.2f}",
        str(example["tokens"]),
        str(example["finish"]),
    ]


def _answer(example: Mapping[str, Any], row: list[str]) -> Answer:
    texts = list(zip(SAMPLE_COLUMNS, row, strict=True))
    media = example.get("media", ())
    return Answer(thumbnails(media), len(media), texts)


def _lines(*tags: str) -> Chart:
    """Return a chart of several tags. TensorBoard reads each as a regular expression."""
    return ["Multiline", [f"^{tag}$" for tag in tags]]


def _band(middle: str, low: str, high: str) -> Chart:
    """Return a chart of a line with a shaded band around it."""
    return ["Margin", [middle, low, high]]


LAYOUT: dict[str, dict[str, Chart]] = {
    "1 Does it learn?": {
        "reward and held-out accuracy": _lines("reward/mean", "val/accuracy"),
        "parts of the reward": _lines("reward/parts/.+"),
        "spread of rewards, dead groups": _lines("reward/std", "reward/dead_groups"),
        "response length (5th, 50th, 95th percentile)": _band(
            "response/length_p50", "response/length_p05", "response/length_p95"
        ),
        "length where A > 0 and where A < 0": _lines("response/length_positive", "response/length_negative"),
        "cut, repeated, distinct": _lines("response/truncated", "response/repetition", "response/distinct"),
    },
    "2 Is it stable?": {
        "gradient norm before clipping": _lines("optim/gradient_norm"),
        "gradient norm / its median": _lines("optim/gradient_spike"),
        "entropy": _lines("policy/entropy"),
        "KL to the old policy": _lines("kl/old_new_k3"),
        "KL to the reference": _lines("kl/policy_reference_k[13]"),
        "alarms and rollbacks": _lines("collapse/alarms", "collapse/rollbacks"),
        "update size and changed weights": _lines("update/relative_norm", "update/changed"),
        "norm of the weights": _lines("weights/.+"),
    },
    "3 How far does the policy move from its snapshot?": {
        "log s_i (5th, 50th, 95th percentile)": _band(
            "ratio/log_sequence_p50", "ratio/log_sequence_p05", "ratio/log_sequence_p95"
        ),
        "token log-ratios (1st, 50th, 99th percentile)": _band(
            "ratio/log_token_p50", "ratio/log_token_p01", "ratio/log_token_p99"
        ),
        "median log s_i by the sign of A": _lines("ratio/log_sequence_(positive|negative)_p50"),
        "spread of log s_i by mini-batch": _lines(r"by_mini_batch/log_sequence_std_\d+"),
        "effective sample size by mini-batch": _lines(r"by_mini_batch/effective_sample_size_\d+"),
        "KL by mini-batch": _lines(r"by_mini_batch/kl_old_new_k3_\d+"),
    },
    "4 What does clipping take away?": {
        "clipped tokens and sequences": _lines("clip/(tokens|sequences)"),
        "clipped tokens by the sign of A": _lines("clip/tokens_(positive|negative)"),
        "clipped at the lower and upper bound": _lines("clip/(low|high)"),
        "clipped tokens by mini-batch": _lines(r"by_mini_batch/clip_tokens_\d+"),
        "no gradient for any reason": _lines("clip/zero_gradient_tokens"),
    },
    "5 Is the sampler the policy?": {
        "gap of log-probabilities": _lines("noise/sampler_(logprob|sequence)_gap"),
        "staleness": _lines("staleness/.+"),
    },
    "6 Mixture of experts": {
        "choices that differ from the old policy's": _lines("moe/changed_.+"),
        "confidence of the routers": _lines("moe/router_confidence"),
        "evenness of the load": _lines("moe/load_entropy", "moe/idle_experts"),
        "load of the busiest expert": _lines("moe/load_max_violation"),
    },
    "7 Speed": {
        "tokens per second": _lines("throughput/(generated|trained)_tokens_per_s"),
        "seconds": _lines("time/(rollout|reward|update)_s"),
    },
}
"""Category -> chart -> its tags, for a run that logs everything."""


def layout(*, routers: bool, reference: bool, staleness: bool) -> dict[str, dict[str, Chart]]:
    """Return :data:`LAYOUT` without the charts that would be empty in a run without these features."""
    empty = set()
    if not reference:
        empty.add("KL to the reference")
    if not staleness:
        empty.add("staleness")
    categories = {}
    for category, charts in LAYOUT.items():
        categories[category] = {chart: tags for chart, tags in charts.items() if chart not in empty}
    if not routers:
        del categories["6 Mixture of experts"]
    return categories
