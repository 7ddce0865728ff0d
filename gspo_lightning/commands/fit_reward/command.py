"""``gspo fit-reward``: run the command, from the arguments to the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gspo_lightning.core.escape import say

_ABOUT = "Train a reward model on preference pairs, judge it on held-out ones, and write it in transformers format."
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


def main(argv: Sequence[str]) -> int:
    """Parse the arguments, then train, evaluate and export a reward model.

    Returns:
        The exit code (see :func:`gspo_lightning.cli.main`).

    Raises:
        UserError: anything wrong with the arguments, the config or the pairs.
    """
    from gspo_lightning.commands.fit.help import asked_for

    arguments = list(argv)
    if asked_for(arguments):
        say(short_help(_ABOUT))
        return 0
    arguments = ["--help" if argument == "--help_all" else argument for argument in arguments]
    from gspo_lightning.commands.fit.absent import check_named
    from gspo_lightning.commands.fit.arguments import plugin_paths

    check_named(arguments)
    return _run(arguments, plugin_paths(arguments))


def _run(arguments: list[str], plugins: list[str]) -> int:
    from jsonargparse import ArgumentError, set_parsing_settings

    from gspo_lightning.commands.fit.explain import explain
    from gspo_lightning.commands.fit.log_filters import install_log_filters, quiet_writers
    from gspo_lightning.commands.fit_reward.cli import RewardCLI, fields
    from gspo_lightning.core.distributed import leaves_no_group
    from gspo_lightning.core.errors import UserError
    from gspo_lightning.core.registry import import_plugins

    install_log_filters()
    helps = any(argument.endswith("help") for argument in arguments)
    set_parsing_settings(docstring_parse_attribute_docstrings=helps)  # reading all sources takes seconds
    import_plugins(plugins)
    argv = sys.argv
    sys.argv = [argv[0], "fit-reward", *arguments]  # Lightning starts other ranks with it
    try:
        with quiet_writers(), leaves_no_group(of_many=False):
            RewardCLI.run(arguments)
    except UserError:
        raise
    except (ArgumentError, ValueError) as error:
        if not isinstance(error, ArgumentError) and "Does not validate against" not in str(error):
            raise
        raise explain(error, arguments, fields()) from error
    except SystemExit as error:
        is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into exit(1)
            return 130 if is_first else 0
        if error.code is None:
            return 0
        return error.code if isinstance(error.code, int) else 1
    finally:
        sys.argv = argv
    return 0


def short_help(about: str) -> str:
    """Return the help page of the command."""
    width = max(len(name) for group in GROUPS.values() for name in group) + 4
    lines = ["usage: gspo fit-reward --config CONFIG [--config OVERLAY] [--section.name VALUE ...]", "", about]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {f'--{name}':<{width}}{text}" for name, text in group.items())]
    return "\n".join([*lines, "", "gspo fit-reward --help_all lists every setting."])
