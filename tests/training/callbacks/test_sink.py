"""Each logger gets what it can show. Below Lightning's own loggers stand fakes of wandb and mlflow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.image import imsave
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gspo_lightning.training.callbacks.sink import Sink

EDGES = np.array([0.0, 1.0, 2.0, 4.0])
COUNTS = np.array([1.0, 0.0, 2.0])
CHARTS = {"1 Does it learn?": {"reward": ["Multiline", ["^reward/mean$"]]}}


class _WandbRun:
    """``wandb.sdk.wandb_run.Run``."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is None
        self.logged.append(data)


class Weights(WandbLogger):
    """Lightning's logger around a run that only remembers."""

    def __init__(self) -> None:
        self._run, self._prefix, self._wandb_init = _WandbRun(), "", {}

    @property
    def experiment(self) -> Any:
        return self._run


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Weights:
    class Histogram:
        def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
            assert (sequence is None) != (np_histogram is None)
            self.sequence, self.np_histogram = sequence, np_histogram

    class Table:
        def __init__(self, columns: Any = None, data: Any = None, rows: Any = None, dataframe: Any = None) -> None:
            assert all(len(row) == len(columns) for row in data)
            self.columns, self.data = columns, data

    class Image:
        def __init__(self, data_or_path: Any, mode: Any = None, caption: Any = None) -> None:
            self.path = data_or_path

    module = ModuleType("wandb")
    module.__dict__.update(Histogram=Histogram, Table=Table, Image=Image)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return Weights()


class _Client:
    """``mlflow.tracking.MlflowClient``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        self.calls.append(("text", run_id, text, artifact_file))

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        self.calls.append(("artifact", run_id, local_path, artifact_path or ""))


class Flow(MLFlowLogger):
    """Lightning's logger around a client that only remembers."""

    def __init__(self) -> None:
        self._mlflow_client, self._run_id, self._initialized = _Client(), "run7", True


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Flow:
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    return Flow()


@pytest.fixture
def png(tmp_path: Path) -> Path:
    pixels = np.zeros((2, 3, 4), dtype=np.uint8)
    pixels[..., 0], pixels[..., 3] = 255, 255  # red, opaque
    imsave(tmp_path / "report.png", pixels)
    return tmp_path / "report.png"


def write_everything(sink: Sink, png: Path) -> None:
    sink.values("reward/histogram", np.array([0.0, np.nan, 1.0, 1.0]), 4)
    sink.counts("ratio/histogram", COUNTS, EDGES, 4)
    sink.text("how_to_read", "**Start** here.", 0)
    sink.table("samples", ["shown as", "completion"], [["sample", "a|b"]], 4, code=("completion",))
    sink.picture("report", png, 8)
    sink.layout(CHARTS)


def test_tensorboard_shows_everything(tmp_path: Path, png: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="run")
    write_everything(Sink([logger]), png)
    logger.finalize("success")
    reader = EventAccumulator(str(tmp_path / "run"))
    reader.Reload()
    (rewards,) = reader.Histograms("reward/histogram")
    assert (rewards.step, rewards.histogram_value.num, rewards.histogram_value.sum) == (4, 3, 2)
    (ratios,) = reader.Histograms("ratio/histogram")
    found = ratios.histogram_value
    assert (found.num, found.min, found.max) == (3, 1, 4)
    assert found.sum == 1 * 1 + 2 * 3  # the lowest bin is open, the centre of [2, 4] is 3
    assert found.sum_squares == 1 * 1 + 2 * 9
    assert (list(found.bucket_limit), list(found.bucket)) == ([1, 2, 4], [1, 0, 2])
    for tag, text in (("how_to_read", "**Start** here."), ("samples", "| sample | `a\\|b` |")):
        (event,) = reader.Tensors(f"{tag}/text_summary")
        assert text in event.tensor_proto.string_val[0].decode()
    (picture,) = reader.Images("report")
    assert (picture.step, picture.height, picture.width) == (8, 2, 3)
    assert "custom_scalars__config__" in reader.Tags()["tensors"]


def test_wandb_shows_all_but_the_layout(wandb: Weights, png: Path) -> None:
    write_everything(Sink([wandb]), png)
    rewards, ratios, guide, samples, picture = wandb.experiment.logged
    assert [entry["trainer/global_step"] for entry in wandb.experiment.logged] == [4, 4, 0, 4, 8]
    assert list(rewards["reward/histogram"].sequence) == [0, 1, 1]
    counts, edges = ratios["ratio/histogram"].np_histogram
    assert (list(counts), list(edges)) == ([1, 0, 2], [0, 1, 2, 4])
    assert guide["how_to_read"].data == [["**Start** here."]]
    assert (samples["samples"].columns, samples["samples"].data) == (["shown as", "completion"], [["sample", "a|b"]])
    assert [image.path for image in picture["report"]] == [str(png)]


def test_mlflow_keeps_texts_and_pictures_as_artifacts(mlflow: Flow, png: Path) -> None:
    write_everything(Sink([mlflow]), png)
    guide, samples, picture = mlflow.experiment.calls
    assert guide == ("text", "run7", "**Start** here.", "how_to_read/step-00000000.md")
    assert samples[2].splitlines()[-1] == "| sample | `a\\|b` |"
    assert samples[3] == "samples/step-00000004.md"
    assert picture == ("artifact", "run7", str(png), "report")


def test_csv_and_unknown_loggers_are_left_alone(tmp_path: Path, png: Path) -> None:
    class Own(Logger):
        @property
        def name(self) -> str:
            return "own"

        version = 0

        def log_metrics(self, *_: Any, **__: Any) -> None:
            raise AssertionError

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            raise AssertionError

    write_everything(Sink([CSVLogger(tmp_path / "csv"), Own()]), png)
    assert not (tmp_path / "csv").exists()


def test_every_logger_of_a_run_gets_its_part(wandb: Weights, mlflow: Flow) -> None:
    Sink([mlflow, wandb]).text("how_to_read", "x", 0)
    assert (len(mlflow.experiment.calls), len(wandb.experiment.logged)) == (1, 1)


def test_an_empty_histogram_is_not_written(wandb: Weights) -> None:
    sink = Sink([wandb])
    sink.values("reward/histogram", np.array([np.nan]), 1)
    sink.values("reward/histogram", np.array([]), 1)
    sink.counts("ratio/histogram", np.zeros(3), EDGES, 1)
    assert wandb.experiment.logged == []
