"""The metrics of a critic."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["CRITIC"]

_CRITIC = "model.critic"

CRITIC = (
    MetricSpec(
        "critic/loss",
        "mean over the critic's updates on the iteration's responses of sum_m (V - R)^2 / (2 sum_i n_i), V the value "
        "of the state before token m, R its return; with model.critic.clip the larger of this and the clipped error",
        "reward^2",
        "falls in the first iterations; then about half the variance of the returns that no state tells",
        "If it does not fall, raise model.critic.lr or model.critic.epochs.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/explained_variance",
        "1 - Var(R - V) / Var(R) over all tokens of the iteration's responses on all ranks, V from before the critic "
        "is trained on them; absent where Var(R) < 1e-3",
        "fraction",
        "above 0.3 after the warm-up; 1 is a critic that knows every return, 0 one that a constant could replace; "
        "falls again when nearly all responses earn the same",
        "At 0 or below the critic only adds noise: raise model.critic.lr, epochs or warm_up, or use GroupNormalised.",
        "Critic",
        when=f"{_CRITIC}; iterations whose returns differ",
    ),
    MetricSpec(
        "critic/clip",
        "tokens of the critic's updates whose gradient the value clipping took away / all tokens",
        "fraction",
        "0 without model.critic.clip; below 0.2 with it",
        "If it is larger, raise model.critic.clip or lower model.critic.lr.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/value_mean",
        "mean of V over all tokens of the iteration's responses, from before the critic is trained on them",
        "reward",
        "follows critic/return_mean, an iteration behind",
        "A gap that stays is a critic that learns too slowly: raise model.critic.lr or epochs.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/return_mean",
        "mean of R, the critic's target A(lam_value) + V, over all tokens of the iteration's responses",
        "reward",
        "near reward/mean, weighted by length, where gamma is 1",
        "If it drifts away from the rewards, lam_value is below 1 and the critic learns from its own errors.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/advantage_bias_by_position/<quarter>",
        "mean advantage, before whitening, of the tokens in the first, second, third or last quarter of their response "
        "(by number among the tokens that the policy chose)",
        "reward",
        "around 0 in all four: over many responses the critic is right everywhere",
        "If it grows towards the first tokens, the reward does not reach them: use lam_value 1 and a warm-up.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/gradient_norm",
        "mean norm of the critic's gradient over its updates of the iteration, all ranks, before clipping",
        "reward^2 per unit of weight",
        "falls with critic/loss; single peaks are clipped (model.critic.gradient_clip)",
        "If it stays above model.critic.gradient_clip, every step is scaled down: raise it, or lower the lr.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/lr",
        "learning rate of the critic's updates of the iteration: model.critic.lr x (optim/lr of the iteration's first "
        "update / the policy's configured rate); model.critic.lr itself while the policy waits (model.critic.warm_up)",
        "1",
        "model.critic.lr, or below it by the shape of model.lr_scheduler",
        "If it is 0, a warm-up of the policy's rate begins at 0: the critic learns from the second iteration on.",
        "Critic",
        when=_CRITIC,
    ),
    MetricSpec(
        "critic/updates",
        "optimizer steps of the critic so far",
        "updates",
        "data.minibatches_per_rollout times model.critic.epochs more in each iteration",
        "The policy stays as it is until model.critic.warm_up of them lie behind the iteration's values.",
        "Critic",
        when=_CRITIC,
    ),
)
