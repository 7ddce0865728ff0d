"""Runs that are killed while they publish, and resumed: the same weights, and a hub with nothing but whole commits."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runs import runs
from tests.runs.processes import Command
from tests.support.hub import Hub, connect, hub_server

REPOSITORY = "me/run"
OPTIONS = [*runs.SMALL, *runs.UNTAUGHT, "--trainer.max_epochs=2", "--trainer.accelerator=cpu", "--ckpt_path=last"]
BEGIN = "gspo_lightning.training.callbacks.push_to_hub:stage:1"


def online(endpoint: str, home: str) -> None:
    """In the process of a run: its hub."""
    connect(SimpleNamespace(endpoint=endpoint), Path(home), pytest.MonkeyPatch())  # type: ignore[arg-type]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as served:
        yield served


def publish(hub: Hub, root: Path, *, model: bool, kill_at: str = "") -> Command:
    """A run of four updates that uploads two checkpoints, or what is left of it."""
    push = {"class_path": "PushToHub", "init_args": {"repository": REPOSITORY, "every_n_updates": 2, "model": model}}
    argv = ["fit", f"--config={runs.QUICKSTART}", *OPTIONS, f"--trainer.callbacks+={json.dumps(push)}"]
    prepare = partial(online, hub.endpoint, str(root.parent / "home"))
    log = root.with_suffix(".log")
    return Command([*argv, f"--trainer.default_root_dir={root}"], kill_at=kill_at, log=log, prepare=prepare).start()


def end(hub: Hub, root: Path, whole: Path, *, model: bool) -> None:
    """The run goes on to its end, and so does the hub: with whole commits, of which the last is the run's end."""
    log = root.with_suffix(".log")
    hub.fails = lambda method, path: None
    assert publish(hub, root, model=model).wait() == [0], log.read_text()
    (run,) = (root / "quickstart").iterdir()
    assert runs.largest_difference(runs.weights(run), runs.weights(whole)) == 0.0
    assert runs.scalars(run) == runs.scalars(whole)
    commits = hub.repositories[f"models/{REPOSITORY}"].commits[1:]
    for _, message, files in commits:
        (path,) = [name for name in files if name.endswith(".ckpt")]
        assert files[path] == (run / path).read_bytes()
        assert files[f"{path}.manifest.json"] == (run / f"{path}.manifest.json").read_bytes()
        assert message == f"Update {int(Path(path).stem.split('-')[1])} of quickstart/version_0"
        assert {"config.yaml", "scalars.jsonl", *(["model.safetensors", "config.json"] if model else [])} <= set(files)
    assert "checkpoints/step-00000004.ckpt" in commits[-1][2]
    noted = [json.loads(line) for line in (run / "hub.jsonl").read_text().splitlines()]
    assert {row["commit"] for row in noted} <= {sha for sha, _, _ in commits}
    assert noted[-1]["commit"] == commits[-1][0]
    assert not list(run.glob(".*unfinished")), list(run.iterdir())
    assert log.read_text().count("Traceback") == 0, log.read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """A run folder, and what its two uploads asked the hub."""
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    with hub_server() as hub:
        assert publish(hub, root, model=False).wait() == [0], root.with_suffix(".log").read_text()
        return next((root / "quickstart").iterdir()), hub.asked


def killed_by(hub: Hub, command: Command, number: int, answered: bool) -> None:
    """Kill the run at its so-manieth question to the hub, which does or does not do what was asked."""
    start = len(hub.asked)

    def fails(method: str, path: str) -> int | None:
        if len(hub.asked) - start != number:
            return None
        command.kill()
        return None if answered else 503

    hub.fails = fails
    assert command.wait() == [-signal.SIGKILL], command.log.read_text()


def changes(method: str, path: str) -> bool:
    return method == "PUT" or "/commit/" in path or path.endswith("/create")


@pytest.mark.long
def test_kills_at_every_question_to_the_hub(
    tmp_path: Path, undisturbed: tuple[Path, list[tuple[str, str]]], record_property: Any
) -> None:
    whole, asked = undisturbed
    cases = [(number, False) for number in range(1, len(asked) + 1)]
    cases += [(number, True) for number, question in enumerate(asked, start=1) if changes(*question)]
    for number, answered in cases:
        root = tmp_path / f"{number}-{answered}" / "run"
        root.parent.mkdir()
        with hub_server() as hub:
            killed_by(hub, publish(hub, root, model=False), number, answered)
            end(hub, root, whole, model=False)
    record_property("kills", f"{len(cases)} kills at {len(asked)} questions to the hub")


@pytest.mark.long
def test_a_kill_before_an_upload_with_a_model(
    hub: Hub, tmp_path: Path, undisturbed: tuple[Path, list[tuple[str, str]]]
) -> None:
    root = tmp_path / "run"
    killed = publish(hub, root, model=True, kill_at=BEGIN)
    assert killed.wait() == [-signal.SIGKILL], killed.log.read_text()
    end(hub, root, undisturbed[0], model=True)
