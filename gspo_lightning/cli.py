"""``gspo``: the command line. Training goes through LightningCLI; the other commands start without torch."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence

from gspo_lightning.core.errors import GSPOError, PluginError, UserError, did_you_mean, mistake_of_plugin
from gspo_lightning.core.escape import escaped_logs, say, show_exception
from gspo_lightning.core.faults import fault_around
from gspo_lightning.core.output import outlives_its_reader

TRAINING = {
    "fit": "train (after the cold start, if the config has one)",
    "validate": "evaluate on the held-out prompts",
    "test": "evaluate on the test prompts",
    "predict": "answer prompts and write predictions.jsonl",
}
COMMANDS = {
    "fit-reward": "train a reward model on preference pairs",
    "init": "write a project: a commented config, a reward with its test, example records",
    "list": "list objectives, advantages, rewards, rollouts, environments, prompts, configs",
    "schema": "print the JSON Schema of the YAML, for editors",
    "plan": "estimate memory, batches and compute of a config before you rent a GPU",
    "evaluate": "run benchmarks on a model or on recorded answers, with intervals and paired tests",
    "data": "prepare files of prompts: duplicates, leaks, difficulty, mixtures",
    "score": "score recorded completions without training",
    "report": "draw the curves of runs (report.png) and write a one-page summary",
    "view": "show runs on a local page: curves, answers, tokens and what looks wrong",
    "compare": "compare objectives, or any config changes, on the same prompts and seeds",
    "export": "write a checkpoint of a policy or a reward model in transformers format",
    "replay": "repeat an update from its dump: one that was not finite, or that raised an alarm",
    "doctor": "check versions and devices, and test the sandbox",
}
"""Commands besides training: each is ``main(argv) -> int`` in ``gspo_lightning.commands.<name>``, a file or a package.

``compare`` also takes :func:`main`, to start its runs.
"""
OPTIONS = {
    "--traceback": "with any command: show where in the code an error was raised",
    "--version": "show the version of this package",
}
CONFIGURED = (*TRAINING, "fit-reward", "plan", "compare", "evaluate", "data")
"""Commands that take ``--config``: a file, or the name of a config that ships."""


@outlives_its_reader((*TRAINING, "fit-reward", "compare", "score", "data"))
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: done; 1: failed; 2: user error; 130: interrupted (Ctrl-C); 143: terminated (SIGTERM, with a checkpoint);
    129: the same for a lost connection (SIGHUP); 141: the reader of a short command's output closed the pipe early.

    Args:
        argv: arguments without the program name; None takes ``sys.argv``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # warns at any import about kernels it could not download
    show_traceback = "--traceback" in arguments
    if show_traceback:
        arguments.remove("--traceback")
    try:
        with _any_character(), escaped_logs():
            return _dispatch(arguments)
    except PluginError as error:
        _accuse(error, show_traceback)
        return 2
    except UserError as error:
        if show_traceback:
            raise
        _complain(error)
        return 2
    except GSPOError as error:
        if show_traceback:
            raise
        _complain(error)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if (mistake := mistake_of_plugin(error)) is not None:
            _accuse(mistake, show_traceback)
            return 2
        if show_traceback:
            raise
        if (fault := fault_around(error)) is not None:
            _complain(fault)
            return 2 if isinstance(fault, UserError) else 1
        _apologise(error, arguments)
        return 1


@contextlib.contextmanager
def _any_character() -> Iterator[None]:
    """Escape characters that the output encoding cannot represent, so that no run fails with an encoding error."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [(stream, stream.errors) for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before:
            if not stream.closed:
                with contextlib.suppress(BrokenPipeError):  # the reader closed the pipe
                    stream.reconfigure(errors=errors)


def entry_point() -> None:
    """Entry point of the console script."""
    sys.excepthook = show_exception  # --traceback re-raises a command's error
    # before torch loads OpenMP: threads that wait for each other sleep, and leave the cores to other processes
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        say(_usage())
        return 0
    if name == "--version":
        from gspo_lightning import __version__

        say(f"gspo_lightning {__version__}")
        return 0
    if name in TRAINING:
        from gspo_lightning.commands.fit.help import asked_for, short_help

        if asked_for(arguments):
            say(short_help(name, TRAINING[name]))
            return 0
        arguments = ["--help" if argument == "--help_all" else argument for argument in arguments]
    if name in CONFIGURED:
        from gspo_lightning.commands.fit.configs import with_files

        arguments = with_files(arguments)
    if name in (*TRAINING, "plan"):
        from gspo_lightning.commands.fit.absent import check_named

        check_named(arguments[1:], hub=name != "plan")
    if name in TRAINING:
        from gspo_lightning.commands.fit.unknown import refuse_unknown

        refuse_unknown(arguments[1:])
        from gspo_lightning.commands.fit.command import run

        return run(arguments)
    if name == "compare":
        from gspo_lightning.commands.compare import main as compare

        return compare(arguments[1:], main)
    if name in COMMANDS:
        module = importlib.import_module(f"gspo_lightning.commands.{name.replace('-', '_')}")
        return int(module.main(arguments[1:]))
    raise UserError("gspo", f"{name!r} is not a command; {did_you_mean(name, [*TRAINING, *COMMANDS])}")


def _usage() -> str:
    lines = ["usage: gspo COMMAND [options]     (gspo COMMAND --help for its options)", ""]
    lines += [f"  {name:<13}{text}" for name, text in {**TRAINING, **COMMANDS, **OPTIONS}.items()]
    return "\n".join([*lines, "", "start here: gspo fit --config quickstart, or gspo init my_project"])


def _complain(error: Exception) -> None:
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    if first or not isinstance(error, UserError):  # report a user error once, not on every rank
        say(f"error: {error}", file=sys.stderr)


def _accuse(error: PluginError, show_traceback: bool) -> None:
    """Print an error in the user's plug-in, on every rank that meets it."""
    if show_traceback and error.frames:
        say(f"Traceback (most recent call last, the plug-in's own frames):\n{error.frames}", file=sys.stderr)
    say(f"error: {error}", file=sys.stderr)


def _apologise(error: Exception, arguments: Sequence[str]) -> None:
    """Print an unexpected error: its full traceback and how to report it."""
    show_exception(type(error), error, error.__traceback__)
    command = shlex.join(["gspo", *arguments])
    say(
        f"error: {type(error).__name__} that gspo_lightning did not expect: a bug in it or in a plug-in.\n"
        f"  fix: please report it, with the traceback above, the config, and the command: {command}",
        file=sys.stderr,
    )
