"""The words of verl's configs (``python -m verl.trainer.main_ppo``), as its GRPO and GSPO scripts write them."""

from __future__ import annotations

from gspo_lightning.commands.fit.foreign.word import Table, Word, none, to

__all__ = ["OTHER_ROOMS", "VERL"]

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_OBJECTIVE, _OPTIONS = "model.objective", "data.rollouts.init_args.options"
_BUDGET = "data.max_tokens_per_micro_batch"
_MEMORY = "a token budget in place of micro-batches, for training and log-probabilities alike; it changes no result"
_FOLLOW = "samples to train on must follow the policy itself"
_CRITIC = "ValueModel, see docs/critic.md"
_PARALLEL = "no pipeline, context or tensor parallelism in training: FSDP2Strategy shards over all ranks"
_FILES = "verl's Parquet files can be read: columns: {answer: reward_model.ground_truth}"
_OFFLOAD = "FSDP2Strategy: cpu_offload, shards and optimizer state together"
_FUNCTION = (
    "FunctionReward takes lists of completions; verl's compute_score takes one (wrap it in a list comprehension)"
)
_OVERLONG = "trl.rewards.get_soft_overlong_punishment, or a function of your own: FunctionReward"

VERL: Table = {
    "Batches": {
        "data.train_batch_size": to("data.prompts_per_rollout", note="prompts, in both"),
        "data.gen_batch_size": to("data.prompts_per_rollout"),
        f"{_ACTOR}.ppo_mini_batch_size": to(
            "data.minibatches_per_rollout",
            note="a number of mini-batches, not their size: train_batch_size / ppo_mini_batch_size",
        ),
        f"{_ACTOR}.ppo_epochs": to("data.epochs_per_rollout"),
        f"{_ACTOR}.ppo_micro_batch_size": to(_BUDGET, note=_MEMORY),
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_ACTOR}.ppo_max_token_len_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_ACTOR}.use_dynamic_bsz": none("always on: micro-batches are cut by tokens"),
        f"{_ROLLOUT}.log_prob_micro_batch_size": to(_BUDGET, note=_MEMORY),
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz": none("always on: micro-batches are cut by tokens"),
        f"{_REF}.log_prob_micro_batch_size": to(_BUDGET, note=_MEMORY),
        f"{_REF}.log_prob_micro_batch_size_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_REF}.log_prob_max_token_len_per_gpu": to(_BUDGET, note=_MEMORY),
        f"{_REF}.log_prob_use_dynamic_bsz": none("always on: micro-batches are cut by tokens"),
        f"{_ACTOR}.shuffle": to(
            "data.deal", note="shuffled; by default every mini-batch has equal parts of every group"
        ),
        "trainer.balance_batch": none("a group stays on one rank, micro-batches are cut by tokens"),
    },
    "Objective and advantages": {
        f"{_ACTOR}.policy_loss.loss_mode": to(
            _OBJECTIVE,
            note="gspo: GSPO, vanilla: GRPO or DAPO by loss_agg_mode, gmpo: GMPO, cispo: CISPO, sapo: SAPO; clip-cov, "
            "kl-cov and gpg are not here",
        ),
        f"{_ACTOR}.clip_ratio": to(
            "model.objective.init_args.clip_low",
            "model.objective.init_args.clip_high",
            note="of GSPO 3e-4 and 4e-4; verl's default of 0.2 is for token ratios",
        ),
        f"{_ACTOR}.clip_ratio_low": to("model.objective.init_args.clip_low"),
        f"{_ACTOR}.clip_ratio_high": to("model.objective.init_args.clip_high"),
        f"{_ACTOR}.clip_ratio_c": to(
            "model.objective.init_args.dual_clip", note="off unless set; verl's default is 3.0"
        ),
        f"{_ACTOR}.loss_agg_mode": to(
            _OBJECTIVE,
            note="each brings its own aggregation: token-mean: DAPO, seq-mean-token-mean: GRPO, "
            "seq-mean-token-sum-norm: DrGRPO; GSPO is a mean over sequences",
        ),
        f"{_ACTOR}.loss_scale_factor": to("model.objective.init_args.max_response_tokens", note="of DrGRPO"),
        f"{_ACTOR}.tau_pos": to("model.objective.init_args.tau_pos", note="of SAPO"),
        f"{_ACTOR}.tau_neg": to("model.objective.init_args.tau_neg", note="of SAPO"),
        f"{_ACTOR}.entropy_coeff": to("model.objective.init_args.entropy_coef"),
        f"{_ACTOR}.use_kl_loss": to("model.objective.init_args.kl_coef", note="above 0 switches it on"),
        f"{_ACTOR}.kl_loss_coef": to(
            "model.objective.init_args.kl_coef", note="0 unless set, and then no reference is kept"
        ),
        f"{_ACTOR}.kl_loss_type": to(
            "model.objective.init_args.kl_estimator", note="kl: k1, mse: k2, low_var_kl: k3; k3 is not cut at 10 here"
        ),
        "algorithm.adv_estimator": to(
            "data.advantages", note="grpo: GroupNormalised, rloo: LeaveOneOut, gae: GAE with model.critic: ValueModel"
        ),
        "algorithm.norm_adv_by_std_in_grpo": to("data.advantages", note="true: GroupNormalised, false: GroupMean"),
        "algorithm.use_kl_in_reward": to("data.kl_in_reward", note="above 0 switches it on"),
        "algorithm.kl_ctrl.kl_coef": to("data.kl_in_reward", note="per nat of the whole response, constant"),
        "algorithm.kl_ctrl.type": none("the weight is constant"),
        "algorithm.kl_ctrl.horizon": none("the weight is constant"),
        "algorithm.kl_ctrl.target_kl": none("the weight is constant"),
        "algorithm.kl_penalty": none("data.kl_in_reward is the log-ratio (k1)"),
        "algorithm.gamma": to("data.advantages.init_args.gamma", note="of GAE"),
        "algorithm.lam": to("data.advantages.init_args.lam", note="of GAE; its lam_value, the critic's, is 1 here"),
        "algorithm.rollout_correction.rollout_is": to(
            "model.objective.init_args.correction", note="a sequence weight here is the geometric mean over tokens"
        ),
        "algorithm.rollout_correction.rollout_is_threshold": to("model.objective.init_args.correction_cap"),
        "algorithm.filter_groups.enable": to("data.resample_dead_groups", note="the number of prompts to try"),
        "algorithm.filter_groups.max_num_gen_batches": to("data.resample_dead_groups", note="a number of prompts"),
    },
    "Optimizer": {
        f"{_ACTOR}.optim.lr": to("model.optimizer.init_args.lr"),
        f"{_ACTOR}.optim.weight_decay": to("model.optimizer.init_args.weight_decay"),
        f"{_ACTOR}.optim.betas": to("model.optimizer.init_args.betas"),
        f"{_ACTOR}.optim.lr_warmup_steps": to(
            "model.lr_scheduler",
            note="torch.optim.lr_scheduler.LinearLR with init_args {start_factor: 0.01, total_iters: STEPS}",
        ),
        f"{_ACTOR}.optim.lr_warmup_steps_ratio": to(
            "model.lr_scheduler", note="LinearLR, whose total_iters counts updates"
        ),
        f"{_ACTOR}.optim.lr_decay_style": to("model.lr_scheduler", note="a class of torch.optim.lr_scheduler"),
        f"{_ACTOR}.optim.clip_grad": to("trainer.gradient_clip_val"),
        f"{_ACTOR}.grad_clip": to("trainer.gradient_clip_val"),
    },
    "Data and rewards": {
        "data.train_files": to("data.train", note=f"one set, or a Mixture of several; {_FILES}"),
        "data.val_files": to("data.val", note=f"one set, or a Mixture of several; {_FILES}"),
        "data.prompt_key": to("data.columns", note="{prompt: THEIR COLUMN}"),
        "data.reward_fn_key": none("data.rewards judge every record; a reward may read the column data_source"),
        "data.max_prompt_length": to("data.max_prompt_tokens"),
        "data.max_response_length": to("data.max_response_tokens"),
        "data.filter_overlong_prompts": none("always on: too long prompts are dropped with a message"),
        "data.filter_overlong_prompts_workers": none("prompts are encoded in this process"),
        "data.truncation": none("prompts are never cut"),
        "data.shuffle": none("always on"),
        "data.return_raw_chat": none("messages are read as they are, and rewards get them"),
        "data.trust_remote_code": to("model.trust_remote_code"),
        "data.image_key": to("data.columns", note="{images: THEIR COLUMN}"),
        "data.val_batch_size": to("data.evaluation.batch_size"),
        "data.apply_chat_template_kwargs": to("data.chat_template_kwargs"),
        "data.custom_cls.path": to("data.train", note="a subclass of PromptSet, named by plugins"),
        "data.custom_cls.name": to("data.train", note="a subclass of PromptSet, named by plugins"),
        "custom_reward_function.path": to("plugins", "data.rewards", note=_FUNCTION),
        "custom_reward_function.name": to("data.rewards", note=_FUNCTION),
        "reward_model.enable": to("data.rewards", note="SequenceClassificationReward"),
        "reward_model.model.path": to("data.rewards", note="SequenceClassificationReward: name_or_path"),
        "reward_model.num_workers": to("data.reward_workers"),
        "reward_model.reward_manager": to("data.rewards"),
        "reward_model.reward_kwargs.max_resp_len": to("data.rewards", note=_OVERLONG),
        "reward_model.reward_kwargs.overlong_buffer_cfg.enable": to("data.rewards", note=_OVERLONG),
        "reward_model.reward_kwargs.overlong_buffer_cfg.len": to("data.rewards", note=_OVERLONG),
        "reward_model.reward_kwargs.overlong_buffer_cfg.log": to("data.rewards", note=_OVERLONG),
        "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor": to("data.reward_weights", note=_OVERLONG),
    },
    "Rollouts and evaluation": {
        f"{_ROLLOUT}.n": to("data.group_size"),
        f"{_ROLLOUT}.name": to("data.rollouts", note="vllm: VLLMEngine or VLLMServer; sglang is not here"),
        f"{_ROLLOUT}.mode": to("data.rollouts", note="sync: VLLMEngine, async: VLLMServer"),
        f"{_ROLLOUT}.temperature": to("data.temperature"),
        f"{_ROLLOUT}.top_p": to("data.evaluation.top_p", note=f"evaluations only: {_FOLLOW}"),
        f"{_ROLLOUT}.top_k": to("data.evaluation.top_k", note=f"evaluations only: {_FOLLOW}; -1 is 0 here"),
        f"{_ROLLOUT}.val_kwargs.n": to("data.evaluation.samples"),
        f"{_ROLLOUT}.val_kwargs.temperature": to("data.evaluation.temperature"),
        f"{_ROLLOUT}.val_kwargs.top_p": to("data.evaluation.top_p"),
        f"{_ROLLOUT}.val_kwargs.top_k": to("data.evaluation.top_k", note="-1 is 0 here"),
        f"{_ROLLOUT}.val_kwargs.do_sample": to("data.evaluation.temperature", note="0 is greedy"),
        f"{_ROLLOUT}.gpu_memory_utilization": to(
            "data.rollouts.init_args.gpu_memory_utilization", note="of VLLMEngine"
        ),
        f"{_ROLLOUT}.tensor_model_parallel_size": to(
            _OPTIONS, note="{tensor_parallel_size: 2}; of VLLMEngine in a run of one rank"
        ),
        f"{_ROLLOUT}.data_parallel_size": to("data.rollouts.init_args.start", note="servers that VLLMServer starts"),
        f"{_ROLLOUT}.max_num_batched_tokens": to(_OPTIONS, note="{max_num_batched_tokens: 8192}"),
        f"{_ROLLOUT}.max_num_seqs": to(_OPTIONS, note="{max_num_seqs: 256}"),
        f"{_ROLLOUT}.enforce_eager": to(_OPTIONS, note="{enforce_eager: true}"),
        f"{_ROLLOUT}.enable_chunked_prefill": to(_OPTIONS, note="{enable_chunked_prefill: true}"),
        f"{_ROLLOUT}.max_model_len": to(
            _OPTIONS, note="{max_model_len: N}; else as long as max_prompt_tokens + max_response_tokens needs"
        ),
        f"{_ROLLOUT}.free_cache_engine": to(
            _OPTIONS,
            note="VLLMEngine sleeps on a GPU while the policy is trained; {enable_sleep_mode: false} keeps it awake",
        ),
        f"{_ROLLOUT}.load_format": none("weights come from the trainer"),
        f"{_ROLLOUT}.layered_summon": to(
            "trainer.strategy", note="FSDP2Strategy: rollouts gathered, the default, or lockstep, layer by layer"
        ),
        f"{_ROLLOUT}.calculate_log_probs": to("model.old_logprobs", note="source, recompute or auto"),
        f"{_ROLLOUT}.multi_turn.enable": to("data.rollouts", note="EnvironmentRollouts"),
        f"{_ROLLOUT}.multi_turn.max_assistant_turns": to(
            "data.rollouts.init_args.max_turns", note="of EnvironmentRollouts"
        ),
        f"{_ROLLOUT}.agent.num_workers": none(
            "environments run in the trainer's process, many conversations at a time"
        ),
    },
    "Model and memory": {
        "actor_rollout_ref.model.path": to("model.name_or_path"),
        "actor_rollout_ref.model.trust_remote_code": to("model.trust_remote_code"),
        "actor_rollout_ref.model.enable_gradient_checkpointing": to("model.gradient_checkpointing"),
        "actor_rollout_ref.model.use_remove_padding": to(
            "model.layout", note="auto packs wherever the model allows it"
        ),
        "actor_rollout_ref.model.use_fused_kernels": none("log-probabilities are computed in chunks"),
        "actor_rollout_ref.model.use_shm": none("transformers loads the weights"),
        "actor_rollout_ref.model.lora_rank": to("model.lora.r"),
        "actor_rollout_ref.model.lora_alpha": to("model.lora.alpha"),
        "actor_rollout_ref.model.target_modules": to("model.lora.target_modules"),
        "actor_rollout_ref.model.exclude_modules": none("model.lora.target_modules names those that get adapters"),
        "actor_rollout_ref.model.lora_adapter_path": none("merge the adapters into the model first"),
        f"{_ACTOR}.strategy": to("trainer.strategy", note="FSDP2Strategy of this package, ddp or auto"),
        f"{_ACTOR}.fsdp_config.param_offload": to("trainer.strategy", note=_OFFLOAD),
        f"{_ACTOR}.fsdp_config.optimizer_offload": to("trainer.strategy", note=_OFFLOAD),
        f"{_ACTOR}.fsdp_config.fsdp_size": to("trainer.strategy", note="FSDP2Strategy"),
        f"{_ACTOR}.fsdp_config.model_dtype": to("model.dtype"),
        f"{_REF}.fsdp_config.param_offload": to("trainer.strategy", note=_OFFLOAD),
        f"{_ACTOR}.use_torch_compile": none("the policy is not compiled"),
        f"{_REF}.use_torch_compile": none("the policy is not compiled"),
        f"{_ACTOR}.entropy_checkpointing": none("entropies are computed in chunks"),
        f"{_ACTOR}.entropy_from_logits_with_chunking": none("always on"),
        f"{_ACTOR}.ulysses_sequence_parallel_size": none(_PARALLEL),
        f"{_REF}.ulysses_sequence_parallel_size": none(_PARALLEL),
    },
    "The run": {
        "trainer.total_epochs": to(
            "trainer.max_epochs",
            note="counts iterations, not passes over the data: passes * prompts / prompts_per_rollout",
        ),
        "trainer.total_training_steps": to("trainer.max_epochs", note="verl's step is an iteration here"),
        "trainer.test_freq": to("trainer.check_val_every_n_epoch", note="iterations, in both"),
        "trainer.save_freq": to("trainer.callbacks", note="LastCheckpoint: every_n_iterations"),
        "trainer.max_actor_ckpt_to_keep": to("trainer.callbacks", note="LastCheckpoint: keep_last"),
        "trainer.val_before_train": to(
            "trainer.num_sanity_val_steps", note="-1, the default, evaluates first; 0 does not"
        ),
        "trainer.val_only": none("the command says it: gspo validate"),
        "trainer.n_gpus_per_node": to("trainer.devices"),
        "trainer.nnodes": to("trainer.num_nodes"),
        "trainer.device": to("trainer.accelerator"),
        "trainer.project_name": to("trainer.logger", note="init_args of WandbLogger: project"),
        "trainer.experiment_name": to("trainer.logger", note="init_args of WandbLogger: name"),
        "trainer.default_local_dir": to("trainer.default_root_dir"),
        "trainer.resume_mode": to("ckpt_path", note="last"),
        "trainer.resume_from_path": to("ckpt_path"),
        "trainer.log_val_generations": none("held-out answers are always shown in TensorBoard"),
        "trainer.rollout_data_dir": to("data.record_rollouts", note="into the run folder"),
        "trainer.validation_data_dir": none("gspo predict writes answers to a file"),
        "trainer.critic_warmup": to("model.critic.init_args.warm_up", note="updates of the critic, not iterations"),
        "trainer.use_legacy_worker_impl": none("there are no Ray workers"),
        "actor_rollout_ref.nccl_timeout": to("trainer.strategy", note="timeout of a strategy's init_args"),
        "actor_rollout_ref.hybrid_engine": none("sampling and training share one process: VLLMEngine, GroupedSampler"),
    },
}
"""Subject -> dotted name -> what becomes of it."""

OTHER_ROOMS: dict[str, Word] = {
    "critic": to("model.critic", note=_CRITIC),
    "critic.optim.lr": to("model.critic.init_args.lr"),
    "critic.ppo_epochs": to("model.critic.init_args.epochs"),
    "critic.cliprange_value": to("model.critic.init_args.clip", note="null sets no limit, and is the default"),
    "critic.model.path": to("model.critic.init_args.name_or_path", note="null copies the policy"),
    f"{_ACTOR}.megatron": none(_PARALLEL),
    f"{_REF}.megatron": none(_PARALLEL),
    f"{_ACTOR}.profiler": to("trainer.profiler"),
    f"{_REF}.profiler": none("trainer.profiler watches the whole process"),
    "global_profiler": to("trainer.profiler"),
    "ray_kwargs": none("there is no Ray: Lightning or torchrun starts the ranks"),
    f"{_ROLLOUT}.engine_kwargs": to(_OPTIONS),
    f"{_ROLLOUT}.profiler": none("trainer.profiler watches the whole process"),
    "algorithm": none("see docs/from_verl.md"),
    "reward_model": to("data.rewards", note="see docs/rewards.md"),
    "actor_rollout_ref": none("see docs/from_verl.md"),
}
"""Beginning of a dotted name -> what becomes of all that is not in :data:`VERL`; the longest beginning counts."""
