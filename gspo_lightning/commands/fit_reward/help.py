"""``gspo fit-reward --help``: the most used settings, in groups; needs neither a parser nor torch."""

from __future__ import annotations

__all__ = ["short_help"]

GROUPS: dict[str, dict[str, str]] = {
    "the run": {
        "config": "a YAML file, or a built-in name such as reward_model; a second one overrides the first",
        "ckpt_path": "a checkpoint to resume from; last: the newest one of this config",
        "seed_everything": "of weights and of the order of pairs (default: 1)",
        "print_config": "print the whole config with every default, and stop",
    },
    "how long, and on what": {
        "trainer.max_epochs": "passes over the pairs (default: 1)",
        "trainer.val_check_interval": "share of an epoch between two evaluations (default: 1.0)",
        "trainer.accelerator": "auto, cpu or gpu (default: auto)",
        "trainer.devices": "number of processes on this machine (default: auto)",
        "trainer.strategy": "how ranks share the work: ddp, or --config fsdp2",
        "trainer.precision": "32-true (default) or bf16-mixed",
        "trainer.gradient_clip_val": "largest norm of a gradient (default: 1.0)",
        "trainer.default_root_dir": "folder of all runs (default: runs)",
    },
    "model": {
        "model.name_or_path": "a hub id, a folder in transformers format, tiny-qwen3 or tiny-qwen3-moe",
        "model.optimizer": "a class of torch.optim; its learning rate: --model.optimizer.lr",
        "model.lr_scheduler": "a class of torch.optim.lr_scheduler (default: a constant learning rate)",
        "model.center_rewards_coefficient": "keeps the mean reward near 0 (default: 0)",
        "model.lora": "train low-rank adapters and the head instead of all weights",
        "model.gradient_checkpointing": "less memory, about a third more compute (default: false)",
    },
    "preference pairs": {
        "data.train": "records with chosen, rejected, and perhaps prompt and margin; a file or a hub id",
        "data.val": "held-out pairs (default: those of one training prompt in ten)",
        "data.columns": "our word -> the data's: {chosen: preferred, rejected: other}",
        "data.text": "what the model reads: joined or chat (default: chat where records hold messages)",
        "data.batch_size": "pairs of an optimizer step, over all ranks (default: 64)",
        "data.micro_batch_size": "pairs in one forward: memory only, never results (default: 8)",
        "data.max_tokens": "pairs with a longer answer are dropped, never cut (default: what the model takes)",
    },
}
"""Group -> setting -> description."""


def short_help(about: str) -> str:
    """Return the help page of the command.

    Args:
        about: description of the command.
    """
    width = max(len(name) for group in GROUPS.values() for name in group) + 4
    lines = ["usage: gspo fit-reward --config CONFIG [--config OVERLAY] [--section.name VALUE ...]", "", about]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {f'--{name}':<{width}}{text}" for name, text in group.items())]
    return "\n".join([*lines, "", "gspo fit-reward --help_all lists every setting."])
