"""A class that refuses its arguments: the message names it, where it stands, and gives its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from tests.runs.runs import QUICKSTART

EARLY = {"class_path": "EarlyStopping", "init_args": {"monitor": "reward/mean", "mode": "upwards"}}


@pytest.mark.parametrize(
    ("callbacks", "place"),
    [(EARLY, ""), ([EARLY], "[0]"), ([{"class_path": "LearningRateMonitor"}, EARLY], "[1]")],
)
def test_the_reason_of_a_constructor_is_what_is_shown(
    callbacks: object, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": callbacks}}))
    assert main(["fit", f"--config={QUICKSTART}", f"--config={tmp_path / 'more.yaml'}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"error: trainer.callbacks{place}: EarlyStopping: `mode` can be min, max, got upwards"
