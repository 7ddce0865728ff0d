"""``gspo fit --help``: the most used settings, in groups; needs neither a parser nor torch."""

from __future__ import annotations

from collections.abc import Sequence

GROUPS: dict[str, dict[str, str]] = {
    "the run": {
        "config": "a YAML file, or a built-in name (gspo list configs); a second one overrides the first",
        "ckpt_path": "a checkpoint to resume from; last: the newest one of this config",
        "seed_everything": "of weights, prompt order and sampling (default: 1)",
        "plugins": "files, folders or modules with your own rewards, objectives ...",
        "print_config": "print the whole config with every default, and stop",
    },
    "how long, and on what": {
        "trainer.max_epochs": "iterations: sample, score, update (default: 100)",
        "trainer.check_val_every_n_epoch": "iterations between two evaluations (default: 1)",
        "trainer.accelerator": "auto, cpu or gpu (default: auto)",
        "trainer.devices": "number of processes on this machine (default: auto)",
        "trainer.strategy": "how ranks share the work: ddp, or --config fsdp2",
        "trainer.precision": "32-true (default), bf16-mixed ...",
        "trainer.gradient_clip_val": "largest norm of a gradient (default: 1.0)",
        "trainer.default_root_dir": "folder of all runs (default: runs)",
    },
    "model": {
        "model.name_or_path": "a hub id, a folder in transformers format, a GGUF file, tiny-qwen3 or tiny-qwen3-moe",
        "model.objective": "GSPO (default), GRPO, DAPO ... (gspo list objectives)",
        "model.optimizer": "a class of torch.optim; its learning rate: --model.optimizer.lr",
        "model.lr_scheduler": "a class of torch.optim.lr_scheduler (default: a constant learning rate)",
        "model.cold_start": "supervised steps on demonstrations before the first iteration",
        "model.lora": "train low-rank adapters instead of all weights",
        "model.gradient_checkpointing": "less memory, about a third more compute (default: false)",
    },
    "data and rewards": {
        "data.train": "prompts: .jsonl, .json, .csv, .tsv, .parquet, a hub id or a prompt set",
        "data.val": "held-out prompts",
        "data.columns": "our word -> the data's: {prompt: question, answer: solution}",
        "data.rewards": "name -> reward (gspo list rewards)",
        "data.reward_weights": "name -> weight in the total (default: 1)",
        "data.system_prompt": "system message, or messages, before every prompt",
    },
    "batches and sampling": {
        "data.group_size": "responses per prompt (default: 8)",
        "data.prompts_per_rollout": "prompts per iteration (default: 32)",
        "data.minibatches_per_rollout": "updates per iteration (default: 4)",
        "data.max_prompt_tokens": "longer prompts are dropped (default: 512)",
        "data.max_response_tokens": "longer responses are cut (default: 512)",
        "data.max_tokens_per_micro_batch": "tokens in one forward: memory only, never results (default: 16384)",
        "data.temperature": "of training samples (default: 1.0)",
        "data.rollouts": "where responses come from (gspo list rollouts)",
    },
}
"""Group -> setting -> description."""


def short_help(command: str, about: str) -> str:
    """Return the help page of a training command."""
    width = max(len(name) for group in GROUPS.values() for name in group) + 4
    lines = [f"usage: gspo {command} --config CONFIG [--config OVERLAY] [--section.name VALUE ...]", "", about]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {f'--{name}':<{width}}{text}" for name, text in group.items())]
    lines += ["", f"gspo {command} --help_all lists every setting; --model.cold_start.help describes the parts of one."]
    return "\n".join(lines)


def asked_for(arguments: Sequence[str]) -> bool:
    """True if the arguments ask for the short help page."""
    return any(argument in ("-h", "--help") for argument in arguments)
