"""Logger for Trackio (``pip install trackio``): a local dashboard, or a Space of the Hugging Face hub."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError


class TrackioLogger(Logger):
    """Logs numbers, histograms, answers and the figure of a run to Trackio, and checkpoints if asked to.

    Without ``space_id`` everything stays on this machine, in a database under TRACKIO_DIR (default: the cache of the
    hub); ``trackio show --project PROJECT`` opens the dashboard. A resumed run continues if it has the same ``name``.

    Args:
        project: project of the dashboard.
        name: name of the run; None lets Trackio choose one.
        space_id: Space of the hub to log to, such as ``me/dashboard``; made, private, if it is not there. None logs
            locally.
        log_model: ``all`` keeps every checkpoint of the run as an artifact, true the last one, false none.
    """

    def __init__(
        self,
        project: str = "gspo",
        name: str | None = None,
        space_id: str | None = None,
        log_model: Literal["all"] | bool = False,
    ) -> None:
        super().__init__()
        try:
            self._trackio: Any = import_module("trackio")
        except ImportError as error:
            raise UserError("trainer.logger.TrackioLogger", "needs trackio", fix="pip install trackio") from error
        self._project = project
        self._name = name
        self._space = space_id
        self._log_model = log_model
        self._run: Any = None
        self._newest: Any = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of Trackio, begun on first use."""
        if self._run is None:
            self._run = self._trackio.init(
                project=self._project,
                name=self._name,
                space_id=self._space,
                resume="allow" if self._name else "never",
                private=True,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return self._run

    @property
    def name(self) -> str:
        """The project."""
        return self._project

    @property
    def version(self) -> str | None:
        """Name of the run; None until it has begun, unless it was given."""
        return self._name if self._run is None else str(self._run.name)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers, or objects of Trackio such as a histogram, at a step."""
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Keep the settings of the run as its config."""
        settings = vars(params) if isinstance(params, Namespace) else dict(params)
        self.experiment.config.update(settings)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Keep a checkpoint as an artifact if ``log_model`` is ``all``; else remember it for the end of the run."""
        self._newest = checkpoint_callback
        if self._log_model == "all":
            self._keep(Path(checkpoint_callback.last_model_path), checkpoint_callback)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Keep the last checkpoint if ``log_model`` is true, and end the run."""
        if self._run is None:
            return
        if self._log_model is True and status == "success" and self._newest is not None:
            self._keep(Path(self._newest.last_model_path), self._newest)
        self._run.finish()

    @rank_zero_only
    def _keep(self, path: Path, checkpoints: Any) -> None:
        metadata = {"score": checkpoints.current_score, "original_filename": path.name}
        artifact = self._trackio.Artifact(f"model-{self.experiment.name}", type="model", metadata=metadata)
        if path.is_dir():
            artifact.add_dir(path)
        else:
            artifact.add_file(path, "model.ckpt")
        aliases = ["best"] if str(path) == checkpoints.best_model_path else []
        self.experiment.log_artifact(artifact, aliases=aliases)
