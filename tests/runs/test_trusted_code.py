"""Whether a model repository's code is run is said in the YAML or on the command line, and by no other file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.policy.tiny import character_tokenizer
from tests.runs import runs
from tests.runs.test_nonfinite import OPTIONS, poison_loss

CODE = """
from pathlib import Path
from transformers import PretrainedConfig
Path({marker!r}).write_text("ran")
class MarkedConfig(PretrainedConfig):
    model_type = "marked"
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Is there once the repository's code has run."""
    return tmp_path / "marker"


@pytest.fixture
def repository(tmp_path: Path, marker: Path) -> Path:
    folder = tmp_path / "repository"
    character_tokenizer().save_pretrained(folder)
    (folder / "configuration_marked.py").write_text(CODE.format(marker=str(marker)))
    config = {"model_type": "marked", "auto_map": {"AutoConfig": "configuration_marked.MarkedConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("run"), *runs.UNTAUGHT, "--trainer.max_epochs=1")


def altered(run: Path, target: Path, **changes: Any) -> Path:
    content = runs.checkpoint(run)
    model = {**content["gspo_lightning"]["model"], **changes}
    torch.save({**content, "hyper_parameters": changes, "gspo_lightning": {"model": model}}, target)
    return target


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_settings_in_a_checkpoint_change_nothing(
    command: str, run: Path, repository: Path, marker: Path, tmp_path: Path
) -> None:
    """LightningCLI lays a checkpoint's ``hyper_parameters`` over the config."""
    file = altered(run, tmp_path / "evil.ckpt", name_or_path=str(repository), trust_remote_code=True)
    options = [*runs.SMALL, *runs.UNTAUGHT, "--trainer.max_epochs=1", f"--trainer.default_root_dir={tmp_path}"]
    assert main([command, f"--config={runs.QUICKSTART}", *options, f"--ckpt_path={file}"]) == 0
    assert not marker.exists()


def test_export_trusts_no_checkpoint(
    run: Path, repository: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = altered(run, tmp_path / "evil.ckpt", name_or_path=str(repository), trust_remote_code=True)
    assert main(["export", str(file), str(tmp_path / "out")]) == 2
    assert "(gspo export and replay: --trust_remote_code)" in capsys.readouterr().err
    assert not marker.exists()
    main(["export", str(file), str(tmp_path / "out"), "--trust_remote_code"])  # the code is no whole model
    assert marker.exists()


def test_replay_trusts_no_dump(
    repository: Path,
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    poison_loss(monkeypatch, float("nan"), update=1)
    dumped = runs.fit(tmp_path / "run", *OPTIONS, code=1)
    monkeypatch.undo()
    (dump,) = (dumped / "dumps").iterdir()
    content = torch.load(dump, weights_only=True)
    content["model"] |= {"name_or_path": str(repository), "trust_remote_code": True}
    torch.save(content, dump)
    assert main(["replay", str(dump)]) == 2
    assert "(gspo export and replay: --trust_remote_code)" in capsys.readouterr().err
    assert not marker.exists()
