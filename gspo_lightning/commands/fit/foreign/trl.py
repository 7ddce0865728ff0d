"""The words of TRL's ``GRPOConfig`` that are its own, of its ``ModelConfig`` and of its ``grpo`` script (TRL 1.16)."""

from __future__ import annotations

from gspo_lightning.commands.fit.foreign.word import Table, none, to

__all__ = ["TRL"]

_OBJECTIVE, _ROLLOUTS, _OPTIONS = "model.objective", "data.rollouts", "data.rollouts.init_args.options"
_FOLLOW = "samples to train on must follow the policy itself"
_ENTROPY = "the weight of the entropy bonus is constant"
_REFERENCE = "the reference is the policy at the start of the run"
_ONLY_R = "adapters have r, alpha and target_modules"
_NF4 = "4bit is NF4 with scales that are not quantised again"
_COLUMNS = "answers are shown as text in TensorBoard and in the report"
_DATASET = "hub id, id:name or id:name:split, or a file"

TRL: Table = {
    "Groups and sampling": {
        "num_generations": to("data.group_size"),
        "generation_batch_size": to(
            "data.prompts_per_rollout", note="generation_batch_size / num_generations: it counts prompts"
        ),
        "steps_per_generation": to(
            "data.minibatches_per_rollout",
            note="steps_per_generation / gradient_accumulation_steps: it counts optimizer steps",
        ),
        "num_iterations": to("data.epochs_per_rollout"),
        "max_completion_length": to("data.max_response_tokens"),
        "max_prompt_length": to("data.max_prompt_tokens", note="longer prompts are dropped with a message, never cut"),
        "temperature": to("data.temperature", note="of training; evaluations are greedy: data.evaluation.temperature"),
        "top_p": to("data.evaluation.top_p", note=f"evaluations only: {_FOLLOW}"),
        "top_k": to("data.evaluation.top_k", note=f"evaluations only: {_FOLLOW}"),
        "min_p": none(_FOLLOW),
        "repetition_penalty": none(_FOLLOW),
        "generation_kwargs": none(_FOLLOW),
        "num_generations_eval": to("data.evaluation.samples", note="above 1 with data.evaluation.temperature above 0"),
        "mask_truncated_completions": to("data.truncated_responses", note="mask"),
        "chat_template_kwargs": to("data.chat_template_kwargs"),
        "cache_implementation": none("sampling shares the keys and values of a prompt among its responses"),
        "pad_to_multiple_of": none("rows are packed without padding"),
        "shuffle_dataset": none("always on"),
        "ds3_gather_for_generation": to(
            "trainer.strategy", note="FSDP2Strategy: rollouts gathered, the default, or lockstep, layer by layer"
        ),
        "use_transformers_continuous_batching": to(
            _ROLLOUTS, note="GroupedSampler, the default, batches in its own way"
        ),
        "transformers_continuous_batching_config": to(_ROLLOUTS, note="GroupedSampler: max_rows"),
        "use_transformers_paged": to(_ROLLOUTS, note="GroupedSampler, the default, batches in its own way"),
        "max_tool_calling_iterations": to("data.rollouts.init_args.max_turns", note="of EnvironmentRollouts"),
        "environment_factory": to("data.rollouts.init_args.environment", note="of EnvironmentRollouts"),
        "rollout_func": to(_ROLLOUTS, note="a subclass of RolloutSource"),
    },
    "Rewards and advantages": {
        "reward_funcs": to("data.rewards", note="names and rewards; a function: {class_path: FunctionReward, ...}"),
        "reward_model_name_or_path": to("data.rewards", note="SequenceClassificationReward"),
        "reward_weights": to(
            "data.reward_weights",
            note="a list in the order of data.rewards, or names and weights; where one of several is None, TRL adds "
            "up the others, and here the response is left out",
        ),
        "multi_objective_aggregation": to(
            "data.combine_rewards",
            note="sum_then_normalize: weighted_sum; normalize_then_sum: normalised_separately",
        ),
        "scale_rewards": to(
            "data.advantages",
            note="group: GroupNormalised, none: GroupMean, batch: BatchNormalised, whose mean is the batch's",
        ),
    },
    "Objective": {
        "loss_type": to(
            _OBJECTIVE,
            note="grpo with importance_sampling_level sequence is GSPO, with token GRPO; dapo (TRL's default) and "
            "bnpo: DAPO, dr_grpo: DrGRPO, luspo: LUSPO, cispo: CISPO, sapo: SAPO, vespo: VESPO",
        ),
        "importance_sampling_level": to(_OBJECTIVE, note="sequence: GSPO, token: GRPO"),
        "epsilon": to(
            "model.objective.init_args.clip_low",
            "model.objective.init_args.clip_high",
            note="of GSPO 3e-4 and 4e-4: TRL's 0.2 never clips a sequence ratio and is refused",
        ),
        "epsilon_high": to(
            "model.objective.init_args.clip_high", note="above 1; of CISPO TRL's is the bound itself: minus 1"
        ),
        "epsilon_low": to("model.objective.init_args.clip_low"),
        "delta": to(
            "model.objective.init_args.dual_clip",
            note="the same above 1 + clip_high; below it TRL also caps good answers",
        ),
        "beta": to(
            "model.objective.init_args.kl_coef",
            note="TRL also weights the term by the ratio (use_bias_correction_kl), which is not done here",
        ),
        "use_bias_correction_kl": none("the KL term is not weighted by the ratio: set it to False to compare"),
        "sapo_temperature_neg": to("model.objective.init_args.tau_neg", note="of SAPO"),
        "sapo_temperature_pos": to("model.objective.init_args.tau_pos", note="of SAPO"),
        "vespo_k_pos": to("model.objective.init_args.k_pos", note="of VESPO"),
        "vespo_lambda_pos": to("model.objective.init_args.lambda_pos", note="of VESPO"),
        "vespo_k_neg": to("model.objective.init_args.k_neg", note="of VESPO"),
        "vespo_lambda_neg": to("model.objective.init_args.lambda_neg", note="of VESPO"),
        "off_policy_mask_threshold": to("model.objective.init_args.opsm_delta"),
        "vllm_importance_sampling_correction": to(
            "model.objective.init_args.correction", note="none, token or sequence; none unless set, TRL's default is on"
        ),
        "vllm_importance_sampling_mode": to(
            "model.objective.init_args.correction",
            "model.objective.init_args.correction_mode",
            note="sequence_mask: sequence and mask; a sequence weight here is a geometric mean over tokens, no product",
        ),
        "vllm_importance_sampling_clip_max": to("model.objective.init_args.correction_cap"),
        "vllm_importance_sampling_cap": to("model.objective.init_args.correction_cap"),
        "vllm_importance_sampling_clip_min": none("weights have an upper bound only"),
        "top_entropy_quantile": none("the loss is over all tokens"),
        "entropy_coef": to("model.objective.init_args.entropy_coef"),
        "use_adaptive_entropy": none(_ENTROPY),
        "entropy_coef_min": none(_ENTROPY),
        "entropy_coef_max": none(_ENTROPY),
        "entropy_coef_delta": none(_ENTROPY),
        "entropy_target": none(_ENTROPY),
        "sync_ref_model": none(_REFERENCE),
        "ref_model_mixup_alpha": none(_REFERENCE),
        "ref_model_sync_steps": none(_REFERENCE),
    },
    "Model": {
        "model_name_or_path": to("model.name_or_path"),
        "model_revision": to("model.revision"),
        "model_init_kwargs": to("model.dtype", "model.config_overrides", note="settings of model, each of its own"),
        "torch_dtype": to("model.dtype", note="float32 with trainer.precision: bf16-mixed is the rule"),
        "dtype": to("model.dtype", note="float32 with trainer.precision: bf16-mixed is the rule"),
        "attn_implementation": to("model.attn_implementation"),
        "trust_remote_code": to("model.trust_remote_code"),
        "router_aux_loss_coef": to("model.router_aux_loss_coef"),
        "disable_dropout": none("always on: every rate of dropout is set to 0"),
        "cast_lm_head_to_fp32": none("log-probabilities are computed in float32 from the logits that the head gives"),
        "ignore_bias_buffers": none("buffers are never synchronised"),
    },
    "Adapters": {
        "use_peft": to("model.lora", note="{r: 16} switches them on"),
        "peft_config": to("model.lora"),
        "lora_r": to("model.lora.r"),
        "lora_alpha": to("model.lora.alpha"),
        "lora_dropout": to("model.lora.dropout", note="only 0: dropout moves ratios by more than the clip range"),
        "lora_target_modules": to("model.lora.target_modules"),
        "lora_target_parameters": none(_ONLY_R),
        "lora_modules_to_save": none(_ONLY_R),
        "lora_task_type": none(_ONLY_R),
        "use_rslora": none(_ONLY_R),
        "use_dora": none(_ONLY_R),
        "load_in_4bit": to("model.lora.base", note="4bit"),
        "load_in_8bit": to("model.lora.base", note="as_loaded or 4bit"),
        "bnb_4bit_quant_type": to("model.lora.base", note=_NF4),
        "bnb_4bit_quant_storage": to("model.lora.base", note=_NF4),
        "use_bnb_nested_quant": to("model.lora.base", note=_NF4),
    },
    "vLLM": {
        "use_vllm": to(
            _ROLLOUTS, note="VLLMEngine in this process, VLLMServer for servers; GroupedSampler needs neither"
        ),
        "vllm_mode": to(_ROLLOUTS, note="colocate: VLLMEngine, server: VLLMServer"),
        "vllm_server_base_url": to(
            "data.rollouts.init_args.urls", note="of VLLMServer; without it servers are started"
        ),
        "vllm_server_host": to("data.rollouts.init_args.urls", note="of VLLMServer; servers are plain vllm serve"),
        "vllm_server_port": to("data.rollouts.init_args.urls", note="of VLLMServer; servers are plain vllm serve"),
        "vllm_server_timeout": to("data.rollouts.init_args.start_timeout_s", note="of VLLMServer"),
        "vllm_group_port": to(
            "data.rollouts.init_args.transfer",
            note="nccl, ipc, files or auto, the fastest way that is possible, of VLLMServer; a port is chosen",
        ),
        "vllm_gpu_memory_utilization": to("data.rollouts.init_args.gpu_memory_utilization", note="of VLLMEngine"),
        "vllm_max_model_length": to(
            _OPTIONS, note="{max_model_len: N}; else as long as max_prompt_tokens + max_response_tokens needs"
        ),
        "vllm_tensor_parallel_size": to(_OPTIONS, note="{tensor_parallel_size: 2}; of VLLMEngine in a run of one rank"),
        "vllm_model_impl": to(_OPTIONS, note="{model_impl: transformers}"),
        "vllm_enable_sleep_mode": to(
            _OPTIONS,
            note="VLLMEngine sleeps on a GPU while the policy is trained; {enable_sleep_mode: false} keeps it awake",
        ),
        "vllm_structured_outputs_regex": none(_FOLLOW),
        "vllm_guided_decoding_regex": none(_FOLLOW),
    },
    "Data and logging": {
        "dataset_name": to("data.train", note=_DATASET),
        "dataset_config": to("data.train", note=_DATASET),
        "dataset_train_split": to("data.train", note=_DATASET),
        "dataset_test_split": to("data.val", note=_DATASET),
        "datasets": to("data.train", note="Mixture: sources, each with a weight and rewards of its own"),
        "train_dataset": to("data.train", note=_DATASET),
        "eval_dataset": to("data.val", note=_DATASET),
        "dataset_streaming": none("rows of a JSONL file stay in the file, other sets are read whole"),
        "streaming": none("rows of a JSONL file stay in the file, other sets are read whole"),
        "log_completions": to("data.record_rollouts", note=f"writes all of them to files; {_COLUMNS} anyway"),
        "num_completions_to_print": none(_COLUMNS),
        "log_unique_prompts": none(_COLUMNS),
        "log_completions_hub_repo": none("data.record_rollouts writes them to the run folder"),
        "log_multimodal": none("recorded rollouts name pictures by their hash"),
    },
}
"""Subject -> word -> what becomes of it."""
