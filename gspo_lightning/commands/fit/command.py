"""Run fit, validate, test or predict, from the arguments to the exit code."""

from __future__ import annotations

import os
import sys

from jsonargparse import ArgumentError, set_parsing_settings

from gspo_lightning.commands.fit.arguments import plugin_paths
from gspo_lightning.commands.fit.callbacks import SavedConfig
from gspo_lightning.commands.fit.cli import Parser, TrainingCLI
from gspo_lightning.commands.fit.explain import explain
from gspo_lightning.commands.fit.log_filters import install_log_filters, quiet_writers
from gspo_lightning.core.distributed import leaves_no_group
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.registry import import_plugins
from gspo_lightning.resume.changes import versions
from gspo_lightning.training.callbacks import Terminated
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.module import GSPOModule


def run(arguments: list[str], cli: type[TrainingCLI] = TrainingCLI) -> int:
    """Parse and run a training command.

    Args:
        arguments: name of the command and its arguments.
        cli: CLI class; a subclass may use the config for something else than a run.

    Returns:
        The exit code (see :func:`gspo_lightning.cli.main`).

    Raises:
        UserError: anything wrong with the arguments or the config.
    """
    install_log_filters()
    helps = any(argument in ("-h", "--help") or argument.endswith(".help") for argument in arguments)
    set_parsing_settings(
        docstring_parse_attribute_docstrings=helps
    )  # reading the sources of all settings takes seconds
    import_plugins(plugin_paths(arguments))
    header = [f"{name} {version}" for name, version in versions().items()]  # header of every saved config
    parser = {"exit_on_error": False, "dump_header": header}
    argv = sys.argv
    sys.argv = [argv[0], *arguments]  # Lightning's launcher starts the other ranks with it
    try:
        # of one rank: the other ranks may be this script, with more collective work to come
        with quiet_writers(), leaves_no_group(of_many=False):
            cli(
                GSPOModule,
                PromptDataModule,
                args=arguments,
                seed_everything_default=1,
                parser_kwargs={**parser, arguments[0]: dict(parser)},
                parser_class=Parser,
                save_config_callback=SavedConfig,
                save_config_kwargs={"overwrite": True},
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,  # would dump the config for unused hyperparameters
            )
    except UserError:
        raise
    except ArgumentError as error:
        raise explain(error, arguments[1:]) from error
    except ValueError as error:  # a constructor refused its arguments, wrapped by jsonargparse
        if "Does not validate against" not in str(error):
            raise
        raise explain(error, arguments[1:]) from error
    except SystemExit as error:
        is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0  # Lightning kills the first rank when another one fails
        if isinstance(error, Terminated):
            return int(error.code or 0) if is_first else 0
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning turns Ctrl-C into exit(1)
            return 130 if is_first else 0
        if error.code is None:
            return 0
        return error.code if isinstance(error.code, int) else 1
    finally:
        sys.argv = argv
    return 0
