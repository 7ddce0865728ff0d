"""Layout of TensorBoard's tab "Custom Scalars", arranged as questions about a run, and a page that explains it."""

from __future__ import annotations

__all__ = ["GUIDE", "LAYOUT", "layout"]

Chart = list[str | list[str]]


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
    absent = {"KL to the reference": not reference, "staleness": not staleness}
    found = {title: {k: v for k, v in charts.items() if not absent.get(k)} for title, charts in LAYOUT.items()}
    if not routers:
        del found["6 Mixture of experts"]
    return found


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
