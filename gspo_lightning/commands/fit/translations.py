"""Words that other frameworks have for the settings of this one."""

from __future__ import annotations

__all__ = ["TRANSLATIONS"]

TRANSLATIONS = {
    "num_generations": "data.group_size",
    "n_samples_per_prompt": "data.group_size",
    "rollout.n": "data.group_size",
    "epsilon": "model.objective.init_args.clip_low (and clip_high)",
    "epsilon_low": "model.objective.init_args.clip_low",
    "epsilon_high": "model.objective.init_args.clip_high",
    "clip_ratio_low": "model.objective.init_args.clip_low",
    "clip_ratio_high": "model.objective.init_args.clip_high",
    "clip_ratio": "model.objective.init_args.clip_low (and clip_high)",
    "left_clip_range": "model.objective.init_args.clip_low",
    "right_clip_range": "model.objective.init_args.clip_high",
    "ppo_mini_batch_size": "data.minibatches_per_rollout (a number of mini-batches, not a size)",
    "train_batch_size": "data.prompts_per_rollout",
    "rollout_batch_size": "data.prompts_per_rollout",
    "per_device_train_batch_size": "data.max_tokens_per_micro_batch (a token budget; results do not depend on it)",
    "gradient_accumulation_steps": "data.max_tokens_per_micro_batch (a token budget; results do not depend on it)",
    "beta": "model.objective.init_args.kl_coef",
    "kl_coef": "model.objective.init_args.kl_coef",
    "steps_per_generation": "data.minibatches_per_rollout",
    "num_iterations": "data.epochs_per_rollout",
    "ppo_epochs": "data.epochs_per_rollout",
    "loss_type": "model.objective",
    "loss_agg_mode": "model.objective (each brings its own aggregation)",
    "top_p": "data.evaluation.top_p (training samples must follow the policy itself)",
    "top_k": "data.evaluation.top_k (training samples must follow the policy itself)",
    "adv_estimator": "data.advantages",
    "scale_rewards": "data.advantages",
    "importance_sampling_level": "model.objective (GSPO is the sequence level, GRPO the token level)",
    "max_completion_length": "data.max_response_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_new_tokens": "data.max_response_tokens",
    "reward_funcs": "data.rewards",
    "learning_rate": "model.optimizer.init_args.lr",
    "max_grad_norm": "trainer.gradient_clip_val",
    "model_name_or_path": "model.name_or_path",
    "total_epochs": "trainer.max_epochs",
}
"""Words of other frameworks -> what the same thing is called here."""
