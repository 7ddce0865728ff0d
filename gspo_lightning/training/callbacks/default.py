"""Default callbacks of ``gspo fit``, for use with your own ``Trainer``."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from gspo_lightning.training.callbacks.checkpoints import LastCheckpoint
from gspo_lightning.training.callbacks.cold_start import ColdStartCurve
from gspo_lightning.training.callbacks.collapse.callback import Collapse
from gspo_lightning.training.callbacks.dashboard import Dashboard
from gspo_lightning.training.callbacks.interrupts import Interrupts
from gspo_lightning.training.callbacks.no_signal import NoSignal
from gspo_lightning.training.callbacks.progress import RunProgress
from gspo_lightning.training.callbacks.ranks import WatchRanks
from gspo_lightning.training.callbacks.recorded_tokens import RecordedTokens
from gspo_lightning.training.callbacks.summary import RunSummary
from gspo_lightning.training.callbacks.watchdog import Watchdog


def default_callbacks(*, progress_bar: bool = True, checkpoints: bool = True) -> list[Callback]:
    """Return the callbacks that ``gspo fit`` adds to a trainer, in working order.

    ``Trainer(callbacks=[*default_callbacks(), MyCallback()], plugins=[AtomicCheckpointIO()])`` trains as ``gspo fit``
    does: collapse is watched, curves and answers go to the loggers, Ctrl-C and SIGTERM stop between two updates, and
    the newest checkpoints are kept.

    Args:
        progress_bar: add :class:`RunProgress`; without it Lightning's own bar shows reward and response length.
        checkpoints: add :class:`LastCheckpoint`.
    """
    callbacks: list[Callback] = [WatchRanks(), Watchdog(), ColdStartCurve(), NoSignal(), Collapse(), Dashboard()]
    callbacks += [RecordedTokens(), RunSummary()]
    if progress_bar:
        callbacks.append(RunProgress())
    # interrupts after callbacks that count updates, checkpoints last: they store the counts
    callbacks.append(Interrupts())
    if checkpoints:
        callbacks.append(LastCheckpoint())
    return callbacks
