"""The words of transformers' ``TrainingArguments``, which TRL's ``GRPOConfig`` inherits (transformers 5.x)."""

from __future__ import annotations

from gspo_lightning.commands.fit.foreign.word import Table, none, to

__all__ = ["TRANSFORMERS"]

_LR, _SCHEDULER, _OPTIMIZER = "model.optimizer.init_args.lr", "model.lr_scheduler", "model.optimizer"
_COMPILED = "the policy is not compiled: packed rows have another shape in every micro-batch"
_UPLOAD = "nothing is uploaded during a run; gspo export --push_to_hub NAME/REPO uploads the folder that it writes"
_KEPT = "rewards get all columns of a record by name"
_LOADER = "no worker process loads prompts"
_MEASURED = "held-out prompts are answered and scored, no logits are collected"
_STRATEGY = "FSDP2Strategy of this package; DeepSpeed is refused"
_DDP = "init_args of lightning.pytorch.strategies.DDPStrategy"
_EVERY = "every update is logged"
_BEST = "LastCheckpoint: keep_best, best_by"

TRANSFORMERS: Table = {
    "Batches": {
        "per_device_train_batch_size": to(
            "data.prompts_per_rollout",
            "data.max_tokens_per_micro_batch",
            note="not a count of completions on a device: prompts_per_rollout prompts with group_size completions each "
            "are cut into minibatches_per_rollout updates; max_tokens_per_micro_batch bounds memory only",
        ),
        "gradient_accumulation_steps": to(
            "data.max_tokens_per_micro_batch",
            "data.minibatches_per_rollout",
            note="an update always takes a whole mini-batch, split by a token budget; accumulate_grad_batches stays 1",
        ),
        "auto_find_batch_size": to(
            "data.max_tokens_per_micro_batch", note="always on: it is halved when memory runs out"
        ),
        "average_tokens_across_devices": none("always on: a loss is divided by the tokens of all ranks"),
        "torch_empty_cache_steps": none("memory that runs out is handled by smaller micro-batches"),
    },
    "Optimizer and schedule": {
        "learning_rate": to(_LR, note="set it: TRL's default is 1e-6, that of torch.optim.AdamW 1e-3"),
        "optim": to(_OPTIMIZER, note="a class such as torch.optim.AdamW, fused where it can be"),
        "optim_args": to(_OPTIMIZER, note="its init_args"),
        "optim_target_modules": none("GaLore and APOLLO are not here; any optimizer class can be named"),
        "weight_decay": to("model.optimizer.init_args.weight_decay", note="TRL's default is 0, torch's 0.01"),
        "adam_beta1": to("model.optimizer.init_args.betas", note="the first of two"),
        "adam_beta2": to("model.optimizer.init_args.betas", note="the second of two"),
        "adam_epsilon": to("model.optimizer.init_args.eps"),
        "lr_scheduler_type": to(
            _SCHEDULER,
            note="a class of torch.optim.lr_scheduler, stepped once per update; the default is constant, TRL's falls "
            "linearly to 0",
        ),
        "lr_scheduler_kwargs": to(_SCHEDULER, note="its init_args"),
        "warmup_steps": to(
            _SCHEDULER, note="torch.optim.lr_scheduler.LinearLR with init_args {start_factor: 0.01, total_iters: STEPS}"
        ),
        "warmup_ratio": to(_SCHEDULER, note="LinearLR, whose total_iters counts updates, not a share of them"),
        "max_grad_norm": to("trainer.gradient_clip_val", note="1.0 is the default here, too"),
        "label_smoothing_factor": none("labels are not smoothed, in the cold start neither"),
        "neftune_noise_alpha": none("noise on embeddings would make ratios of the same weights differ from 1"),
    },
    "Length of a run, evaluation": {
        "num_train_epochs": to(
            "trainer.max_epochs",
            note="counts iterations, not passes over the data: passes * prompts / prompts_per_rollout",
        ),
        "max_steps": to("trainer.max_steps", note="optimizer steps; may end a run inside an iteration"),
        "eval_strategy": to(
            "trainer.check_val_every_n_epoch", note="iterations between evaluations; data.val: null has none"
        ),
        "eval_steps": to(
            "trainer.check_val_every_n_epoch",
            note="iterations, not steps: eval_steps / (minibatches_per_rollout * epochs_per_rollout)",
        ),
        "eval_delay": none("evaluations come from the start, every check_val_every_n_epoch iterations"),
        "eval_on_start": to(
            "trainer.num_sanity_val_steps", note="-1, the default, evaluates before the first update; 0 not"
        ),
        "per_device_eval_batch_size": to("data.evaluation.batch_size", note="prompts that are answered at a time"),
        "prediction_loss_only": none(_MEASURED),
        "eval_do_concat_batches": none(_MEASURED),
        "eval_use_gather_object": none(_MEASURED),
        "eval_accumulation_steps": none(_MEASURED),
        "include_for_metrics": none(_MEASURED),
        "batch_eval_metrics": none(_MEASURED),
        "do_train": none("the command says it: gspo fit"),
        "do_eval": none("the command says it: gspo validate"),
        "do_predict": none("the command says it: gspo predict"),
    },
    "Checkpoints": {
        "output_dir": to("trainer.default_root_dir", note="each run gets a numbered folder in it: CONFIG/version_N"),
        "logging_dir": to("trainer.default_root_dir", note="logs are in the run folder"),
        "overwrite_output_dir": none("a new run gets a new folder"),
        "save_strategy": to("trainer.callbacks", note="LastCheckpoint: every_n_iterations; always on"),
        "save_steps": to(
            "trainer.callbacks", note="LastCheckpoint: every_n_iterations, which counts iterations, not steps"
        ),
        "save_total_limit": to("trainer.callbacks", note="LastCheckpoint: keep_last, 2 unless set"),
        "save_only_model": none("a checkpoint always resumes exactly; gspo export writes the model alone"),
        "save_on_each_node": none("the first rank writes"),
        "load_best_model_at_end": to("trainer.callbacks", note=f"{_BEST}; then gspo export that checkpoint"),
        "metric_for_best_model": to("trainer.callbacks", note=_BEST),
        "greater_is_better": to("trainer.callbacks", note=f"{_BEST}; more is better"),
        "enable_jit_checkpoint": none("always on: Ctrl-C and SIGTERM save between two updates"),
        "resume_from_checkpoint": to("ckpt_path", note="last is the newest checkpoint that is whole"),
        "ignore_data_skip": none("a resume goes on with the prompts that come next"),
        "restore_callback_states_from_checkpoint": none("always on"),
        "push_to_hub": none(_UPLOAD),
        "hub_token": none("HF_TOKEN, or the hub's own login: hf auth login"),
        "hub_private_repo": none("a repository that gspo export --push_to_hub makes is private"),
        "hub_model_id": none(_UPLOAD),
        "hub_strategy": none(_UPLOAD),
        "hub_always_push": none(_UPLOAD),
        "hub_revision": none("gspo export --push_to_hub uploads to the main branch"),
    },
    "Logging": {
        "report_to": to("trainer.logger", note="WandbLogger, MLFlowLogger, CSVLogger ...; TensorBoard is always there"),
        "run_name": to("trainer.logger", note="its init_args; the run folder is named after the config file"),
        "project": to("trainer.logger", note="its init_args"),
        "trackio_space_id": none("there is no Trackio logger"),
        "trackio_bucket_id": none("there is no Trackio logger"),
        "trackio_static_space_id": none("there is no Trackio logger"),
        "logging_strategy": none(_EVERY),
        "logging_steps": none(_EVERY),
        "logging_first_step": none(_EVERY),
        "log_on_each_node": none("the first rank says what concerns all"),
        "logging_nan_inf_filter": to("model.on_nonfinite", note="stop or skip; a NaN is never left out of a mean"),
        "include_num_input_tokens_seen": none("always logged: data/tokens_per_update"),
        "log_level": none("messages go through Python's logging"),
        "log_level_replica": none("messages go through Python's logging"),
        "disable_tqdm": to("trainer.enable_progress_bar", note="the opposite value"),
        "skip_memory_metrics": none("gspo plan says what a config needs"),
        "debug": to("trainer.detect_anomaly", note="finds the operation that made a NaN"),
    },
    "Precision and memory": {
        "bf16": to("trainer.precision", note="bf16-mixed; the weights stay in float32"),
        "fp16": to("trainer.precision", note="16-mixed; the weights stay in float32"),
        "bf16_full_eval": to("trainer.precision", note="evaluations have the precision of training"),
        "fp16_full_eval": to("trainer.precision", note="evaluations have the precision of training"),
        "tf32": none("call torch.set_float32_matmul_precision('high') in a plug-in"),
        "gradient_checkpointing": to("model.gradient_checkpointing", note="off unless set; TRL's default is on"),
        "gradient_checkpointing_kwargs": none("it is always non-reentrant"),
        "torch_compile": none(_COMPILED),
        "torch_compile_backend": none(_COMPILED),
        "torch_compile_mode": none(_COMPILED),
        "use_liger_kernel": none("log-probabilities are computed in chunks, which bounds memory without it"),
        "liger_kernel_config": none("log-probabilities are computed in chunks, which bounds memory without it"),
        "use_cache": none("sampling always keeps keys and values, training never does"),
    },
    "Seeds and devices": {
        "seed": to("seed_everything"),
        "data_seed": to("seed_everything", note="one seed; the order of prompts has draws of its own"),
        "full_determinism": to("trainer.deterministic"),
        "use_cpu": to("trainer.accelerator", note="cpu"),
        "no_cuda": to("trainer.accelerator", note="cpu"),
        "local_rank": none("Lightning starts the ranks: trainer.devices"),
        "fsdp": to("trainer.strategy", note=_STRATEGY),
        "fsdp_config": to("trainer.strategy", note=_STRATEGY),
        "deepspeed": to("trainer.strategy", note=_STRATEGY),
        "accelerator_config": to("trainer.strategy", note="Lightning takes the place of Accelerate"),
        "parallelism_config": to("trainer.strategy", note="Lightning takes the place of Accelerate"),
        "ddp_find_unused_parameters": to("trainer.strategy", note=_DDP),
        "ddp_bucket_cap_mb": to("trainer.strategy", note=_DDP),
        "ddp_broadcast_buffers": to("trainer.strategy", note=_DDP),
        "ddp_static_graph": to("trainer.strategy", note=_DDP),
        "ddp_backend": to("trainer.strategy", note=f"process_group_backend of the {_DDP}"),
        "ddp_timeout": to("trainer.strategy", note=f"timeout of the {_DDP}"),
    },
    "Reading prompts": {
        "dataloader_drop_last": none("an iteration always has all of its prompts"),
        "dataloader_num_workers": none(f"{_LOADER}; data.reward_workers is for rewards"),
        "dataloader_pin_memory": none(_LOADER),
        "dataloader_persistent_workers": none(_LOADER),
        "dataloader_prefetch_factor": none(_LOADER),
        "dataloader_multiprocessing_context": none(_LOADER),
        "dataloader_in_order": none(_LOADER),
        "remove_unused_columns": none(_KEPT),
        "label_names": none(_KEPT),
        "train_sampling_strategy": none("prompts are shuffled, each comes once in a pass"),
        "group_by_length": none("prompts are shuffled; packing makes lengths cheap"),
        "length_column_name": none("prompts are shuffled; packing makes lengths cheap"),
    },
}
"""Subject -> word -> what becomes of it."""
