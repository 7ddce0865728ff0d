"""Null in a config file, whose type jsonargparse does not check, is refused where a setting has no such value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from tests import ROOT
from tests.runs import runs

SCHEMA = json.loads((ROOT / "configs" / "schema" / "fit.json").read_text())


def refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "null.yaml").write_text(content)
    argv = ["fit", f"--config={runs.QUICKSTART}", f"--config={tmp_path / 'null.yaml'}", *runs.SMALL]
    argv = [argument for argument in argv if not argument.startswith("--data.max_response_tokens")]
    assert main([*argv, f"--trainer.default_root_dir={tmp_path}"]) == 2
    return capsys.readouterr().err


def settings(section: str) -> list[str]:
    """Numbers and words of a section that have no null in the schema."""
    found: dict[str, Any] = SCHEMA["properties"][section]
    while "$ref" in found:
        found = SCHEMA["$defs"][found["$ref"].split("/")[-1]]
    plain = ("integer", "number", "boolean", "string")
    return [f"{section}.{name}" for name, one in found["properties"].items() if one.get("type") in plain]


def test_there_are_settings_without_null() -> None:
    assert {"data.temperature", "data.group_size"} <= set(settings("data"))
    assert "model.name_or_path" in settings("model")


@pytest.mark.thorough("rest")
@pytest.mark.parametrize(
    "names", [["data.temperature", "model.metrics"], [*settings("data"), *settings("model")]], ids=["two", "rest"]
)
def test_null_is_refused_by_name(names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in names:
        section, setting = name.split(".")
        message = refused(f"{section}: {{{setting}: null}}\n", tmp_path, capsys)
        assert f"error: {name}: is null; it must be " in message


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("data: {evaluation: {samples: null}}", "data.evaluation.samples"),
        ("model: {optimizer: null}", "model.optimizer"),
        ("model: {objective: {class_path: GSPO, init_args: {clip_low: null}}}", "model.objective.init_args.clip_low"),
        ("data: {rewards: {right: {class_path: ExactMatch, init_args: {marker: null}}}}", "marker"),
    ],
)
def test_null_inside_of_a_group_or_a_component_is_refused(
    content: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(f"{content}\n", tmp_path, capsys)
    assert f"{field}: is null; it must be " in message
    assert "something else" not in message


def test_null_where_it_is_a_value_is_taken(tmp_path: Path) -> None:
    content = "model: {cold_start: null, lr_scheduler: null}\ndata: {val: null}\ntrainer: {max_time: null}\n"
    (tmp_path / "null.yaml").write_text(content)
    options = [*runs.UNTAUGHT, "--trainer.max_epochs=1", f"--config={tmp_path / 'null.yaml'}"]
    assert runs.fit(tmp_path, *options).is_dir()
