"""``gspo fit-reward``: run the command, from the arguments to the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gspo_lightning.escape import say

__all__ = ["main"]

_ABOUT = "Train a reward model on preference pairs, judge it on held-out ones, and write it in transformers format."


def main(argv: Sequence[str]) -> int:
    """Parse the arguments, then train, evaluate and export a reward model.

    Returns:
        The exit code (see :func:`gspo_lightning.cli.main`).

    Raises:
        UserError: anything wrong with the arguments, the config or the pairs.
    """
    from gspo_lightning.commands.fit.help import asked_for
    from gspo_lightning.commands.fit_reward.help import short_help

    arguments = list(argv)
    if asked_for(arguments):
        say(short_help(_ABOUT))
        return 0
    arguments = ["--help" if argument == "--help_all" else argument for argument in arguments]
    from gspo_lightning.commands.fit.arguments import check_files, plugin_paths

    check_files(arguments)
    return _run(arguments, plugin_paths(arguments))


def _run(arguments: list[str], plugins: list[str]) -> int:
    from jsonargparse import ArgumentError, set_parsing_settings

    from gspo_lightning.commands.fit.explain import explain
    from gspo_lightning.commands.fit.quiet import quiet_writers, quieten
    from gspo_lightning.commands.fit_reward.cli import RewardCLI, fields
    from gspo_lightning.distributed import leaves_no_group
    from gspo_lightning.errors import UserError
    from gspo_lightning.registry import import_plugins

    quieten()
    helps = any(argument.endswith("help") for argument in arguments)
    set_parsing_settings(docstring_parse_attribute_docstrings=helps)  # reading all sources takes seconds
    import_plugins(plugins)
    before, sys.argv = sys.argv, [sys.argv[0], "fit-reward", *arguments]  # Lightning starts other ranks with it
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
        first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into exit(1)
            return 130 if first else 0
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    finally:
        sys.argv = before
    return 0
