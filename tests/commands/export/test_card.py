"""``gspo export``: the model card says what the checkpoint knows, and the upload is asked for in one call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.export.card import card
from tests.runs import runs
from tests.support.hub import Hub, connect, hub_server

EVALUATED_LATE = "--trainer.check_val_every_n_epoch=5"
"""The last checkpoint is then written after the last iteration has ended."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short iterations of an untaught model, evaluated before and after."""
    made = runs.fit(tmp_path_factory.mktemp("run"), *runs.UNTAUGHT, "--trainer.max_epochs=2", EVALUATED_LATE)
    assert main(["report", str(made)]) == 0  # short runs of tests draw nothing by themselves
    return made


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    folder = tmp_path / "aime"
    folder.mkdir()
    found = {"avg@4": {"value": 0.25, "low": 0.11, "high": 0.42, "n": 30}}
    (folder / "results.json").write_text(json.dumps({"run": {}, "aime2024": found}))
    return folder


def test_the_card_of_a_real_run(run: Path, evaluation: Path, tmp_path: Path) -> None:
    last = str(run / "checkpoints" / "last.ckpt")
    assert main(["export", last, str(tmp_path / "out"), "--evaluation", str(evaluation)]) == 0
    text = (tmp_path / "out" / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    known = yaml.safe_load(header)
    assert known["library_name"] == "transformers"
    assert known["pipeline_tag"] == "text-generation"
    assert known["tags"] == ["reinforcement-learning", "gspo_lightning", "gspo"]
    assert "base_model" not in known  # built here, on no hub
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert f"| learning rate | {config['model']['optimizer']['init_args']['lr']} |" in body
    assert f"| group size | {config['data']['group_size']} |" in body
    assert "| rewards | graded (`Graded`, weight 1) |" in body
    assert "`GSPO(clip_low=0.0003, clip_high=0.0004)`" in body
    content = torch.load(last, weights_only=True)
    sha256 = content["gspo_run"]["data"]["train"]["sha256"]
    assert f"| train | `ChainTask` | 512 | `{sha256[:16]}` |" in body
    assert f"after {content['global_step']} updates in 2 iterations" in body
    for step, _ in content["gspo_evaluations"]:
        assert f"| {step} | " in body
    assert "| aime2024 | avg@4 | 0.25 | 0.11 to 0.42 | 30 |" in body
    assert f"torch {version('torch')}" in body  # torch.__version__ adds the CUDA of its wheel
    assert (tmp_path / "out" / "report.png").read_bytes() == (run / "report.png").read_bytes()
    assert str(tmp_path) not in text
    assert str(run.parent) not in text


def content_of(**settings: Any) -> dict[str, Any]:
    model = {"name_or_path": "Qwen/Qwen3-0.6B", "lora": None} | settings.pop("model", {})
    data = {
        "train": "openai/gsm8k:main:train",
        "val": "/home/me/secret/held_out.jsonl",
        "rewards": {"correct": "MathVerifier"},
    }
    config = {"model": {"objective": "GRPO", "optimizer": "AdamW"}, "data": data | settings}
    return {
        "global_step": 1200, "epoch": 299, "gspo_lightning": {"model": model, "objective": "GRPO()"},
        "gspo_run": {"config": config, "versions": {"torch": "2"}, "data": {
            "train": {"prompts": 7473, "sha256": "a" * 64}, "val": {"prompts": 9, "sha256": "b" * 64}}},
    }  # fmt: skip


def test_hub_ids_are_named_and_paths_of_the_machine_are_not() -> None:
    text = card(content_of(system_prompt="Think."))
    known = yaml.safe_load(text.split("---\n")[1])
    assert known["base_model"] == "Qwen/Qwen3-0.6B"
    assert known["datasets"] == ["openai/gsm8k"]
    assert "`openai/gsm8k:main:train`" in text
    assert "`held_out.jsonl`" in text
    assert "/home/me" not in text
    assert "1,200 updates in 300 iterations" in text
    assert "```text\nThink.\n```" in text
    local = card(content_of(model={"name_or_path": "/home/me/models/mine", "lora": {"r": 8}}))
    assert "/home/me" not in local
    assert "base_model" not in yaml.safe_load(local.split("---\n")[1])
    assert "adapters merged" in local
    assert "1 update in 1 iteration with" in card(content_of() | {"global_step": 1, "epoch": 0})


def test_a_checkpoint_that_knows_only_its_model_still_has_a_card() -> None:
    known = {name: value for name, value in content_of().items() if name != "gspo_run"}
    assert "| objective | `GRPO()` |" in card(known)


def test_an_evaluation_that_is_not_there_is_said_before_anything_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = str(run / "checkpoints" / "last.ckpt")
    assert main(["export", last, str(tmp_path / "out"), "--evaluation", str(tmp_path)]) == 2
    assert "results.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as served:
        connect(served, tmp_path / "home", monkeypatch)
        yield served


def test_the_folder_is_uploaded_whole_to_a_private_repository(
    hub: Hub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(out), "--push_to_hub", "me/mine"]) == 0
    repository = hub.repositories["models/me/mine"]
    assert repository.private
    ((_, message, files),) = repository.commits[1:]
    assert message == "Upload by gspo export"
    assert {name: data for name, data in files.items() if name != ".gitattributes"} == {
        path.name: path.read_bytes() for path in out.iterdir()
    }
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert "uploaded: http" in capsys.readouterr().out


def test_a_name_that_the_hub_would_not_take_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none.ckpt"), str(tmp_path / "out"), "--push_to_hub", "a/b/c"]) == 2
    assert "--push_to_hub" in capsys.readouterr().err


def test_a_hub_that_gives_no_answer_is_said_before_the_export(
    hub: Hub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    out = tmp_path / "out"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(out), "--push_to_hub", "me/mine"]) == 2
    said = capsys.readouterr().err
    assert "--push_to_hub: http://127.0.0.1:9 gives no answer (" in said
    assert "Traceback" not in said
    assert not out.exists()


def test_a_hub_that_vanishes_during_the_upload_leaves_the_folder(
    hub: Hub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(method: str, path: str) -> int | None:
        if method == "POST":  # the export is done, and the client asks for the repository
            raise BrokenPipeError("the connection is closed without an answer")
        return None

    hub.fails = gone
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between its attempts
    out = tmp_path / "out"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(out), "--push_to_hub", "me/mine"]) == 1
    said = capsys.readouterr().err
    assert f"hf upload me/mine {out}" in said
    assert "Traceback" not in said[said.rindex("error: ") :]  # that of the server stands before it
    assert (out / "config.json").is_file()
