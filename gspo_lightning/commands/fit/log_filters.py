"""Filter third-party warnings and log messages during training."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

from transformers.utils.logging import disable_progress_bar

from gspo_lightning.core.escape import say


class _ToStderr(logging.Handler):
    """Log handler that prints plain lines to the current ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record."""
        say(self.format(record), file=sys.stderr)


def _not_shown_by_root(record: logging.LogRecord) -> bool:
    """True if no handler of the root logger writes this record to the terminal, as those of basicConfig and Ray do."""
    streams = [stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if stream is not None]
    return not any(
        isinstance(handler, logging.StreamHandler) and handler.stream in streams and record.levelno >= handler.level
        for handler in logging.getLogger().handlers
    )


def install_log_filters() -> None:
    """Hide third-party messages that do not concern the user; show this package's log messages, each once."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    package = logging.getLogger("gspo_lightning")
    package.setLevel(logging.INFO)
    if not any(isinstance(handler, _ToStderr) for handler in package.handlers):
        package.addHandler(_ToStderr())
    for logger in (package, logging.getLogger("lightning")):  # both pass their records on to the root logger, too
        for handler in logger.handlers:
            handler.addFilter(_not_shown_by_root)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stderr.isatty():
        disable_progress_bar()  # transformers' bar for loading and saving
    for pattern in (
        ".*LightningCLI's args parameter is intended.*",
        ".*does not have many workers.*",
        ".*dataloader is not resumable.*",
        ".*ended before the epoch ended.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*number of training batches.*",
        ".*Total length of `PromptLoader` across ranks is zero.*",  # data.val: null
        ".*available but not used.*",
        ".*You are trying to `self.log.*",
        ".*sync_dist=True.*",  # logged values are already reduced over ranks
        ".*isinstance.treespec, LeafSpec.*",
        ".*`_get_vc_dir`.*",
    ):
        warnings.filterwarnings("ignore", message=pattern)


@contextlib.contextmanager
def quiet_writers() -> Iterator[None]:
    """Suppress tracebacks of TensorBoard's writer thread: its errors are raised again at the next write."""
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
