"""Uploads during a run, and a resume from a revision: ``huggingface_hub`` itself, against a hub on this machine."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.training.callbacks import push_to_hub
from gspo_lightning.training.callbacks.background import Background
from tests import ROOT
from tests.runs import runs
from tests.support.hub import Hub, connect, hub_server

REPOSITORY = "me/run"
LEARNS = [*runs.UNTAUGHT, "--model.optimizer.init_args.lr=0.003"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as served:
        connect(served, tmp_path / "home", monkeypatch)
        yield served


def pushing(every: int, **more: Any) -> list[str]:
    arguments = {"repository": REPOSITORY, "every_n_updates": every, "model": False} | more
    return [f"--trainer.callbacks+={json.dumps({'class_path': 'PushToHub', 'init_args': arguments})}"]


def commits(hub: Hub) -> list[tuple[str, str, dict[str, bytes]]]:
    return hub.repositories[f"models/{REPOSITORY}"].commits[1:]


@pytest.mark.thorough
def test_a_run_is_uploaded_and_resumed_elsewhere_from_a_revision(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three iterations of two updates; the revision of update 4 continues on another machine without a break."""
    caplog.set_level("INFO")
    run = runs.fit(tmp_path / "a", *LEARNS, *pushing(4), "--trainer.max_epochs=3")
    repository = hub.repositories[f"models/{REPOSITORY}"]
    assert repository.private
    steps = [json.loads(line) for line in (run / "hub.jsonl").read_text().splitlines()]
    assert [(row["step"], row["commit"]) for row in steps] == [
        (step, sha) for step, (sha, _, _) in zip((4, 6), commits(hub), strict=True)
    ]
    for step, (_, message, files) in zip((4, 6), commits(hub), strict=True):
        name = f"checkpoints/step-{step:08d}.ckpt"
        assert files.keys() == {".gitattributes", "config.yaml", "scalars.jsonl", name, f"{name}.manifest.json"}
        assert message == f"Update {step} of quickstart/version_0"
    assert commits(hub)[-1][2][name] == (run / name).read_bytes()
    assert not list(run.glob(".upload*"))
    first = commits(hub)[0][0]
    other = [*LEARNS, "--trainer.max_epochs=3", "--allow_changed_config=true"]  # another root folder, no upload
    resumed = runs.fit(tmp_path / "b", *other, f"--ckpt_path=hf://{REPOSITORY}@{first}")
    assert json.loads((resumed / "hub.json").read_text()) == {"repository": REPOSITORY, "commit": first}
    assert f"step-{4:08d}.ckpt" in caplog.text
    assert runs.largest_difference(runs.weights(resumed), runs.weights(run)) == 0.0
    assert len((resumed / "scalars.jsonl").read_text().splitlines()) == len(
        (run / "scalars.jsonl").read_text().splitlines()
    )
    again = runs.fit(
        tmp_path / "b", *other[:-2], "--trainer.max_epochs=4", other[-1], f"--ckpt_path=hf://{REPOSITORY}@{first}"
    )
    assert again == resumed  # what it made before is not trained again
    assert runs.summary(again)["updates"] == 8


@pytest.mark.thorough
def test_each_commit_is_a_model_that_transformers_loads(hub: Hub, tmp_path: Path) -> None:
    run = runs.fit(tmp_path / "a", *LEARNS, *pushing(100, model=True), "--trainer.max_epochs=1")
    ((_, _, files),) = commits(hub)
    assert {"config.json", "model.safetensors", "README.md", "tokenizer.json", "config.yaml"} <= files.keys()
    found = load_policy(ModelSettings(REPOSITORY)).model.state_dict()
    trained = {name.removeprefix("policy.model."): weight for name, weight in runs.weights(run).items()}
    assert runs.largest_difference(dict(found), trained) == 0.0


@pytest.mark.thorough
def test_training_goes_on_whatever_the_hub_does(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first upload is refused, the second finds the hub again; the run is the one without uploads."""
    refused = [0]

    def fails(method: str, path: str) -> int | None:
        refused[0] += "/commit/" in path
        return 403 if "/commit/" in path and refused[0] == 1 else None

    hub.fails = fails
    run = runs.fit(tmp_path / "a", *LEARNS, *pushing(2))
    plain = runs.fit(tmp_path / "b", *LEARNS)
    assert runs.largest_difference(runs.weights(run), runs.weights(plain)) == 0.0
    (warned,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "hub:" in r.getMessage()]
    assert warned.startswith(f"hub: update 2 was not uploaded to {REPOSITORY}: ")
    assert "403" in warned
    assert [json.loads(line)["step"] for line in (run / "hub.jsonl").read_text().splitlines()] == [4]
    assert not list(run.glob(".upload*"))


@pytest.mark.thorough
def test_a_public_repository_gets_nothing(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub.repository(REPOSITORY)
    runs.fit(tmp_path, *LEARNS, *pushing(2), "--trainer.max_epochs=1")
    assert commits(hub) == []
    assert "is public" in caplog.text
    runs.fit(tmp_path, *LEARNS, *pushing(2, private=False), "--trainer.max_epochs=1")
    assert len(commits(hub)) == 1


@pytest.mark.thorough
def test_mistakes_are_named_first(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (pushing(2, repository="no name"), "PushToHub.repository"),
        (pushing(0), "PushToHub.every_n_updates: is 0"),
        ([*pushing(2), "--trainer.enable_checkpointing=false"], "this run keeps none"),
        ([f"--ckpt_path=hf://{REPOSITORY}"], "hf://NAME/REPO@REVISION"),
        (["--ckpt_path=hf://no name"], "cannot be read"),
    ):
        runs.fit(tmp_path, *LEARNS, *arguments, code=2)
        assert words in capsys.readouterr().err
    hub.repository(REPOSITORY)
    runs.fit(tmp_path, *LEARNS, f"--ckpt_path=hf://{REPOSITORY}", code=2)
    assert "holds no checkpoint" in capsys.readouterr().err
    runs.fit(tmp_path, *LEARNS, f"--ckpt_path=hf://{REPOSITORY}@nowhere", code=2)
    assert "cannot be read" in capsys.readouterr().err
    assert not list(tmp_path.glob("quickstart/version_*/hub.json"))


@pytest.mark.thorough
def test_commands_of_the_page(
    hub: Hub, page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/hub.md, with small runs; the commit of its last command is one that the first has made."""
    monkeypatch.chdir(page_folder("hub"))
    small = [*(o for o in runs.SMALL if not o.startswith("--trainer.callbacks=")), *LEARNS,
             f"--trainer.default_root_dir={tmp_path}", "--trainer.enable_progress_bar=false",
             '--trainer.callbacks+={"class_path": "RunSummary", "init_args": {"report": false}}']  # fmt: skip
    text = (ROOT / "docs" / "hub.md").read_text()
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    push, newest, chosen = (shlex.split(line)[1:] for line in lines)
    assert main([*push, *small, "--trainer.max_epochs=1"]) == 0
    ((commit, _, files),) = hub.repositories["models/me/my-run"].commits[1:]
    assert {"model.safetensors", "config.yaml", "checkpoints/step-00000002.ckpt"} <= files.keys()
    assert main([*newest, *small, "--trainer.max_epochs=2"]) == 0
    assert main([*(word.replace("@7d5c1e0", f"@{commit}") for word in chosen), *small, "--trainer.max_epochs=3"]) == 0
    found = [(run.name, runs.summary(run)["updates"]) for run in sorted(tmp_path.glob("quickstart/version_*"))]
    assert found == [("version_0", 2), ("version_1", 6)]
    assert [m for _, m, _ in hub.repositories["models/me/my-run"].commits[1:]] == [
        f"Update {step} of quickstart/version_{run}" for step, run in ((2, 0), (4, 1), (6, 1))
    ]


def test_of_the_jobs_that_wait_the_newest_is_done() -> None:
    background, go, done = Background(), threading.Event(), []
    background.submit(lambda: (go.wait(10), done.append("first"))[1], lambda: done.append("first dropped"))
    while background._waiting is not None:  # the first has begun
        pass
    background.submit(lambda: done.append("second"), lambda: done.append("second dropped"))
    background.submit(lambda: done.append("third"), lambda: done.append("third dropped"))
    assert not background.wait(0.01)
    go.set()
    assert background.wait(10)
    assert done == ["second dropped", "first", "third"]
    background.submit(lambda: done.append("fourth"), list)
    assert background.wait(10)
    assert done[-1] == "fourth"


@pytest.mark.thorough
def test_an_export_that_fails_is_a_warning_with_its_words(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(staged: Path, name: str, *, trust_remote_code: bool) -> None:
        (staged / "checkpoints" / name).write_bytes(b"")
        raise RuntimeError("the export failed: no room")

    monkeypatch.setattr(push_to_hub, "export_beside", refused)
    run = runs.fit(tmp_path, *LEARNS, *pushing(2, model=True), "--trainer.max_epochs=1")
    assert "the export failed: no room; training goes on" in caplog.text
    assert runs.summary(run)["updates"] == 2


def test_an_interrupted_run_saves_and_uploads_no_more(hub: Hub, tmp_path: Path) -> None:
    with runs.interrupted(lambda loader: loader.iteration == 1):
        run = runs.fit(tmp_path, *LEARNS, *pushing(1), "--trainer.max_epochs=3", code=130)
    assert [path.name for path in run.glob("checkpoints/step-*3.ckpt")] == ["step-00000003.ckpt"]
    assert all("step-00000003" not in path for _, _, files in commits(hub) for path in files)
