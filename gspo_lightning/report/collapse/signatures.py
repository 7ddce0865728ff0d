"""Collapse signatures, each a small class whose fields are its thresholds (docs/collapse.md).

Numbers are in the definitions of the metrics (:mod:`gspo_lightning.core.metric_table`), beside their healthy ranges.

To add one, subclass ``Signature`` (:mod:`gspo_lightning.report.collapse.watch`), and list it here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from gspo_lightning.core.metric_table.spec import threshold
from gspo_lightning.report.collapse.watch import History, Look, Signature, reward_share, rose
from gspo_lightning.report.statistics.paired import fall

ENTROPY = "policy/entropy"
TAUGHT = "distill/kl"
"""Metric of runs with a teacher: their rewards need not carry a signal."""


@dataclass
class GradientSpikes(Signature):
    """Gradient norms, before clipping, far above their median: several within a few updates, or a single huge one.

    Single spikes of up to 30 times the median occur in healthy runs, where most of a batch has nothing to teach.
    """

    name: ClassVar[str] = "gradient_spikes"
    advice: ClassVar[str] = (
        "lower the learning rate, use a sequence-level ratio; clipping hides spikes, it does not cure them"
    )
    scope = "update"
    factor: float = threshold("gradient_spikes.factor")
    """Threshold, as a factor of the median of the 64 norms before."""
    huge: float = threshold("gradient_spikes.huge")
    """Factor beyond which a single spike raises the alarm."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        spike = look.get("optim/gradient_spike", 1.0)
        if spike <= self.factor:
            return None
        return f"gradient norm {look.get('optim/gradient_norm', math.nan):.3g}, {spike:.0f} times its median"

    def at_once(self, look: Look) -> bool:
        """True for a huge spike."""
        return look.get("optim/gradient_spike", 1.0) > self.huge


@dataclass
class NonFinite(Signature):
    """A NaN or infinity among the metrics. ``model.on_nonfinite`` decides if the update is skipped."""

    name: ClassVar[str] = "non_finite"
    advice: ClassVar[str] = "gspo replay names the row and the tensor; lower the learning rate, check the reward"
    scope = "update"

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        bad = sorted(tag for tag, value in look.items() if not math.isfinite(value))
        return f"{', '.join(bad[:3])} not finite" if bad else None


@dataclass
class RatioExplosion(Signature):
    """Ratios to the old policy spread far beyond the range that clipping is meant for."""

    name: ClassVar[str] = "ratio_explosion"
    advice: ClassVar[str] = "lower the learning rate or minibatches_per_rollout; look at optim/gradient_norm before it"
    scope = "update"
    spread: float = threshold("ratio_explosion.spread")
    """Threshold of the standard deviation of log s_i over sequences, in nats per token."""
    effective: float = threshold("ratio_explosion.effective")
    """Threshold of the effective sample size, as a fraction of the samples."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        spread = look.get("ratio/log_sequence_std", 0.0)
        if spread > self.spread and history.begun:
            return f"log s_i spreads by {spread:.3g} nats per token over sequences"
        effective = look.get("ratio/effective_sample_size", 1.0)
        if 0 < effective < self.effective:
            return f"the effective sample size is {100 * effective:.0f}% of the samples"
        if (clamped := look.get("ratio/clamped", 0.0)) > 0:
            return f"{100 * clamped:.2g}% of ratios are beyond e^20"
        return None


@dataclass
class SampleSizeFall(Signature):
    """Few samples make most of an update, before the ratios explode (arXiv 2602.17616: this precedes a collapse)."""

    name: ClassVar[str] = "sample_size_fall"
    advice: ClassVar[str] = (
        "lower the learning rate or minibatches_per_rollout; with corrections, model.ess_step_scaling"
    )
    scope = "update"
    effective: float = threshold("sample_size_fall.effective")
    """Threshold of the effective sample size, as a fraction of the samples."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        effective = look.get("ratio/effective_sample_size", 1.0)
        if not history.begun or not 0 < effective < self.effective:
            return None
        return f"the effective sample size is {100 * effective:.0f}% of the samples"


@dataclass
class RatioTails(Signature):
    """A twentieth of the sequences moved far from the old policy, which a standard deviation can hide."""

    name: ClassVar[str] = "ratio_tails"
    advice: ClassVar[str] = "lower the learning rate or minibatches_per_rollout; look at the shortest responses"
    scope = "update"
    tail: float = threshold("ratio_tails.tail")
    """Threshold of the 5th and 95th percentile of log s_i, in nats per token away from 0."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        low = look.get("ratio/log_sequence_p05", 0.0)
        high = look.get("ratio/log_sequence_p95", 0.0)
        if not history.begun or max(-low, high) <= self.tail:
            return None
        return f"5% of sequences have log s_i beyond {high if high > -low else low:.2g} nats per token"


@dataclass
class DriftWithoutReward(Signature):
    """The policy moves far from the old one, and the reward does not rise: more KL buys nothing.

    Runs with a teacher are exempt: they move towards it, whatever the reward does.
    """

    name: ClassVar[str] = "drift_without_reward"
    advice: ClassVar[str] = "lower the learning rate or minibatches_per_rollout, or add a KL term (kl_coef)"
    scope = "update"
    drift: float = threshold("drift_without_reward.drift")
    """Threshold of KL(old || new), estimated by k3, in nats per token."""
    gain: float = threshold("drift_without_reward.gain")
    """Share of the reward's range above the median of the last iterations from which on drift is worth it."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        drift = look.get("kl/old_new_k3", 0.0)
        if not history.begun or TAUGHT in look or drift <= self.drift or rose(look, history, self.gain):
            return None
        return f"the policy moved by {drift:.2g} nats per token within an iteration, while the reward does not rise"


@dataclass
class RewardCollapse(Signature):
    """The mean reward falls back by half of the distance between the lowest reward and the best iterations."""

    name: ClassVar[str] = "reward_collapse"
    advice: ClassVar[str] = "go back to a checkpoint from before it and lower the learning rate; read samples first"
    fall: float = threshold("reward_collapse.fall")
    """Share of the way from the lowest reward of the run to its best level."""
    errors: float = threshold("reward_collapse.errors")
    """Standard errors, from the choice of prompts, that the fall must exceed."""
    prompts: int = 32
    """Prompts per iteration; set by the callback."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        now = look.get("reward/mean")
        best = history.best
        lowest = history.lowest_reward
        if now is None or best is None or lowest is None or best <= lowest:
            return None
        noise = max(history.recent.get("reward/std", [0.0])) / self.prompts**0.5
        if best - now > max(self.fall * (best - lowest), self.errors * noise):
            return f"mean reward {now:.3g}, {best:.3g} at its best"
        return None


@dataclass
class HeldOutFall(Signature):
    """Held-out accuracy falls below its best by more than chance explains, whatever the training reward does.

    Both evaluations have the same prompts, so the error is that of their paired difference. Without the scores of
    prompts (older runs) it is that of two independent means, which is wider.
    """

    name: ClassVar[str] = "held_out_fall"
    advice: ClassVar[str] = (
        "lower the learning rate and go on from the checkpoint of the best evaluation (LastCheckpoint.keep_best, "
        "best_by: val/accuracy); read held-out answers"
    )
    scope = "evaluation"
    errors: float = threshold("held_out_fall.errors")
    """Standard errors, of a difference of independent means, that the fall must exceed."""
    paired_errors: float = threshold("held_out_fall.paired_errors")
    """Standard errors of the paired difference that it must exceed: they are smaller, and the best one was lucky."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        best = history.best_held_out
        now = look["val/accuracy"]
        if best is None:
            return None
        levels = f"held-out accuracy {100 * now:.1f}%, {100 * best.accuracy:.1f}% after update {best.updates}"
        scores = history.held_out_scores
        if best.scores.keys() & scores.keys():
            fell = fall(best.scores, scores, self.paired_errors)
            if fell is None:
                return None
            error = f"standard error {100 * fell.error:.1f}, n = {fell.n} paired prompts"
            return f"{levels}: {100 * fell.value:+.1f} points, {error}"
        independent = math.hypot(look["val/accuracy_standard_error"], best.error)
        return levels if best.accuracy - now > self.errors * independent else None


@dataclass
class DeadGroupFlood(Signature):
    """Nearly all groups have equal rewards, though the prompts are not solved.

    Runs with a teacher are exempt: they need no rewards.
    """

    name: ClassVar[str] = "dead_group_flood"
    advice: ClassVar[str] = "use easier prompts, larger groups, a finer reward, or data.resample_dead_groups"
    dead: float = threshold("dead_group_flood.dead")
    """Fraction of groups with equal rewards."""
    solved: float = threshold("dead_group_flood.solved")
    """Share of the reward's range from which on equal rewards count as success."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        dead = look.get("reward/dead_groups", 0.0)
        if TAUGHT in look or dead < self.dead or reward_share(look, history) >= self.solved:
            return None
        return f"{100 * dead:.0f}% of groups have equal rewards at a mean reward of {look.get('reward/mean', 0.0):.3g}"


@dataclass
class EntropyCollapse(Signature):
    """Entropy falls while the reward does not rise.

    Falling entropy with a rising reward is how a skill is learned. Runs with a teacher are exempt: distillation asks
    for the teacher's entropy.
    """

    name: ClassVar[str] = "entropy_collapse"
    advice: ClassVar[str] = "raise clip_high or the temperature, add entropy_coef, or lower the learning rate"
    sudden: float = threshold("entropy_collapse.sudden")
    """Threshold, as a factor of the median of the last iterations."""
    slow: float = threshold("entropy_collapse.slow")
    """Threshold, as a factor of the mean of the first iterations."""
    solved: float = threshold("entropy_collapse.solved")
    """Share of the reward's range from which on certainty is wanted."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        now = look.get(ENTROPY)
        usual = history.usual(ENTROPY)
        start = history.start(ENTROPY)
        if now is None or usual is None or start is None or reward_share(look, history) >= self.solved:
            return None
        if TAUGHT in look:
            return None
        if now < self.sudden * usual and not rose(look, history, 0.1):
            return f"entropy {now:.3g} nats per token, {usual:.3g} before, while the reward does not rise"
        if now < self.slow * start and not rose(look, history, 0.2, since_start=True):
            return f"entropy {now:.3g} nats per token, {start:.3g} at the start, and the reward has not risen since"
        return None


@dataclass
class EntropyExplosion(Signature):
    """Entropy rises while the reward does not: the policy forgets how to write."""

    name: ClassVar[str] = "entropy_explosion"
    advice: ClassVar[str] = "lower the learning rate or entropy_coef, take fewer updates per rollout, or add a KL term"
    factor: float = threshold("entropy_explosion.factor")
    """Threshold, as a factor of the median of the last iterations."""
    least: float = threshold("entropy_explosion.least")
    """Threshold above that median, in nats per token; both must be exceeded."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        now = look.get(ENTROPY)
        usual = history.usual(ENTROPY)
        if now is None or usual is None or now <= max(self.factor * usual, usual + self.least):
            return None
        if rose(look, history, 0.1):
            return None
        return f"entropy {now:.3g} nats per token, {usual:.3g} before, while the reward does not rise"


@dataclass
class LengthCollapse(Signature):
    """Responses shrink while the reward does not rise."""

    name: ClassVar[str] = "length_collapse"
    advice: ClassVar[str] = "look at samples: what short answer is being paid for? lower its reward part"
    factor: float = threshold("length_collapse.factor")
    """Threshold, as a factor of the median of the last iterations."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        now = look.get("response/length")
        usual = history.usual("response/length")
        if now is None or usual is None or now >= self.factor * usual or rose(look, history, 0.1):
            return None
        return f"{now:.1f} tokens per response, {usual:.1f} before, while the reward does not rise"


@dataclass
class LengthRunaway(Signature):
    """Responses grow, or are truncated, while the reward does not rise.

    Growth along with the reward is how thinking is learned.
    """

    name: ClassVar[str] = "length_runaway"
    advice: ClassVar[str] = "look at samples for rambling; use truncated_responses: mask or penalise"
    factor: float = threshold("length_runaway.factor")
    """Threshold, as a factor of the median of the last iterations."""
    cut: float = threshold("length_runaway.cut")
    """Fraction of responses that are truncated ..."""
    cut_more: float = threshold("length_runaway.cut_more")
    """... if it is higher by this much than before."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        if rose(look, history, 0.1):
            return None
        now = look.get("response/length")
        usual = history.usual("response/length")
        if now is not None and usual is not None and now > self.factor * usual:
            return f"{now:.1f} tokens per response, {usual:.1f} before, while the reward does not rise"
        cut = look.get("response/truncated")
        usual_cut = history.usual("response/truncated")
        if cut is not None and usual_cut is not None and cut > max(self.cut, usual_cut + self.cut_more):
            return f"{100 * cut:.0f}% of responses are cut, {100 * usual_cut:.0f}% before"
        return None


@dataclass
class Repetition(Signature):
    """The share of 4-grams that repeat within a response is large, and much larger than before in the run."""

    name: ClassVar[str] = "repetition"
    advice: ClassVar[str] = "read samples: the reward pays for length or format, or the end token is no longer written"
    level: float = threshold("repetition.level")
    """Fraction of repeated 4-grams ..."""
    more: float = threshold("repetition.more")
    """... if it is higher by this much than before."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        now = look.get("response/repetition")
        usual = history.usual("response/repetition")
        if now is None or usual is None or now <= max(self.level, usual + self.more):
            return None
        return f"{100 * now:.0f}% of 4-grams are repeated within a response, {100 * usual:.0f}% before"


@dataclass
class BlindCritic(Signature):
    """A critic that explains none of the returns: its advantages are noisier than those without it."""

    name: ClassVar[str] = "blind_critic"
    advice: ClassVar[str] = "raise model.critic.lr, epochs or warm_up, or use data.advantages: GroupNormalised"
    least: float = threshold("blind_critic.least")
    """Explained variance at or below which the critic is blind."""
    grace: int = int(threshold("blind_critic.grace"))
    """Iterations that a new critic has to learn."""
    solved: float = threshold("blind_critic.solved")
    """Share of the reward's range from which on little is left to explain."""

    @override
    def suspicious(self, look: Look, history: History) -> str | None:
        explained = look.get("critic/explained_variance")
        if explained is None or explained > self.least or reward_share(look, history) >= self.solved:
            return None
        if len(history.recent.get("reward/mean", [])) < self.grace:
            return None
        return f"the critic explains {100 * explained:.0f}% of the variance of the returns"


SIGNATURES: dict[str, type[Signature]] = {
    kind.name: kind
    for kind in (
        NonFinite, GradientSpikes, RatioExplosion, SampleSizeFall, RatioTails, DriftWithoutReward, RewardCollapse,
        HeldOutFall, EntropyCollapse, EntropyExplosion, LengthCollapse, LengthRunaway, Repetition, DeadGroupFlood,
        BlindCritic,
    )
}  # fmt: skip
"""Name -> class, in the order of the checks."""
