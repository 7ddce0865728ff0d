"""Stop cleanly on Ctrl-C, SIGTERM and SIGHUP: between two updates, with a checkpoint and the command to resume."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.distributed import largest, rank_and_world
from gspo_lightning.core.escape import say
from gspo_lightning.training.callbacks.checkpoints import last_checkpoint
from gspo_lightning.training.callbacks.folder import evaluation_follows, run_folder


class Terminated(SystemExit):
    """Exit on SIGTERM (sent by SLURM and Kubernetes before they kill) or SIGHUP (sent when the terminal is lost).

    The exit code is 143 (128 + 15) or 129 (128 + 1).
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class Interrupts(Callback):
    """Stops a run between two updates, with a checkpoint; never inside an update or an evaluation.

    A single process that is sampling stops at once: its state is that of the last update. Several ranks agree on a
    common place to stop, whichever rank got the signal. A second Ctrl-C stops immediately.

    During setup every rank stops at once: there is no checkpoint yet. A cold start saves itself between two steps.
    """

    def __init__(self) -> None:
        self._pending = 0
        """Number of the signal that came last; 0 if none has."""
        self._busy = False
        """True while an update or an evaluation must not be interrupted."""
        self._agreed = False
        """True once all ranks stop at the same place."""
        self._starting = False
        self._folder = Path()
        self._previous: dict[int, Any] = {}
        """Number of a signal -> the handler that it had."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the run folder while all ranks take part, and listen for signals. The model is built after this hook."""
        self._folder = run_folder(trainer)
        if stage == "fit":
            self._starting = True
            self._listen()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the previous handlers: Lightning installs its own here, and later restores those it found."""
        self._release()
        self._starting = False

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen again, after Lightning has installed its handlers: from here on there is something to save."""
        self._listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen again if no sanity check came first."""
        self._listen()

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Hold interrupts back during an update: half an optimizer step must not be saved."""
        self._busy = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Stop if any rank got a signal during the update, unless an evaluation follows."""
        if not evaluation_follows(trainer):
            self._let_through(pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hold interrupts back during an evaluation: a resume would finish it without its first half."""
        self._busy = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop if any rank got a signal during the evaluation."""
        self._let_through(pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the previous handlers: they were Lightning's, which has restored those of before the run by now."""
        self._previous = {}

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save a checkpoint on an interrupt; other exceptions leave the last regular checkpoint as it is."""
        self._release()
        if not isinstance(exception, KeyboardInterrupt | Terminated):
            return
        event = "Terminated" if isinstance(exception, Terminated) else "Interrupted"
        if trainer.state.fn != "fit" or trainer.global_step == 0:
            _say(f"{event} before the first update: there is no checkpoint.")
            return
        checkpoints = last_checkpoint(trainer)
        text = f"{event} after {trainer.global_step} updates. "
        if checkpoints is None:
            _say(f"{text}Nothing was saved (trainer.enable_checkpointing: false).")
            return
        if not self._busy and (rank_and_world()[1] == 1 or self._agreed):
            try:
                text += f"Saved: {checkpoints.save(trainer)}\n"
            except KeyboardInterrupt:  # a second interrupt while saving
                text += "Interrupted again before this was saved. "
        checkpoints.finish_alone(trainer)
        last = self._folder / "checkpoints" / "last.ckpt"
        if not any(last.parent.glob("*.ckpt")):
            _say(f"{text}There is no checkpoint yet.")
            return
        run = self._folder.absolute()  # the command works in any folder
        _say(
            f"{text}Resume with: gspo fit --config {run / 'config.yaml'} --ckpt_path {run / 'checkpoints' / last.name}"
        )

    def _listen(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()  # elsewhere Python installs no handlers
        if not is_main or self._previous:
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: continue without a terminal
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._previous[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        repeated = bool(self._pending)
        self._pending = signum
        if repeated and signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self._starting or (not self._busy and rank_and_world()[1] == 1):
            self._stop(signum)
        _say("Stopping after this update (or evaluation) ...")

    def _let_through(self, module: LightningModule) -> None:
        self._busy = False
        pending = largest(self._pending, module.device)  # over all ranks: they stop together
        if pending:
            self._agreed = True
            self._stop(pending)

    def _stop(self, signum: int) -> None:
        raise KeyboardInterrupt if signum == signal.SIGINT else Terminated(signum)

    def _release(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}


@rank_zero_only
def _say(text: str) -> None:
    say(text, file=sys.stderr)
