"""Lightning callbacks of a run: progress, logging, collapse detection, checkpoints and interrupts."""

from gspo_lightning.training.callbacks.atomic_io import AtomicCheckpointIO
from gspo_lightning.training.callbacks.averaging import AveragedWeights, adapted
from gspo_lightning.training.callbacks.checkpoints import LastCheckpoint, NewOptimizerSettings
from gspo_lightning.training.callbacks.cold_start import ColdStartCurve
from gspo_lightning.training.callbacks.collapse.callback import Collapse
from gspo_lightning.training.callbacks.dashboard import Dashboard
from gspo_lightning.training.callbacks.default import default_callbacks
from gspo_lightning.training.callbacks.interrupts import Interrupts, Terminated
from gspo_lightning.training.callbacks.no_signal import NoSignal
from gspo_lightning.training.callbacks.predictions import PredictionWriter
from gspo_lightning.training.callbacks.progress import RunProgress
from gspo_lightning.training.callbacks.push_to_hub import PushToHub
from gspo_lightning.training.callbacks.recorded_tokens import RecordedTokens
from gspo_lightning.training.callbacks.side_by_side import SideBySide
from gspo_lightning.training.callbacks.summary import RunSummary, show_evaluation
from gspo_lightning.training.callbacks.trackio_logger import TrackioLogger

__all__ = [
    "AtomicCheckpointIO", "AveragedWeights", "ColdStartCurve", "Collapse", "Dashboard", "Interrupts", "LastCheckpoint",
    "NewOptimizerSettings", "NoSignal", "PredictionWriter", "PushToHub", "RecordedTokens", "RunProgress", "RunSummary",
    "SideBySide", "Terminated", "TrackioLogger", "adapted", "default_callbacks", "show_evaluation",
]  # fmt: skip
