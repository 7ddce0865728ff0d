"""Whether code is run is said in the YAML or on the command line, and by no other file."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import save

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


COMMANDS = ("fit", "validate", "test", "predict")


def of_a_checkpoint(command: str, file: Path, root: Path) -> list[str]:
    options = [*runs.SMALL, *runs.UNTAUGHT, "--trainer.max_epochs=1", f"--trainer.default_root_dir={root}"]
    return [command, f"--config={runs.QUICKSTART}", *options, f"--ckpt_path={file}"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_settings_in_a_checkpoint_change_nothing(
    command: str, run: Path, repository: Path, marker: Path, tmp_path: Path
) -> None:
    """LightningCLI lays a checkpoint's ``hyper_parameters`` over the config."""
    file = altered(run, tmp_path / "evil.ckpt", name_or_path=str(repository), trust_remote_code=True)
    assert main(of_a_checkpoint(command, file, tmp_path)) == 0
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


@pytest.mark.thorough
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


class Evil:
    """Runs code where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def refused(argv: list[str], marker: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one message of a command that refuses a file; nobody is told to read it in a way that runs its code."""
    capsys.readouterr()
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert not marker.exists()
    assert "weights_only" not in error
    assert "Weights only" not in error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("command", [*COMMANDS, "export", "replay"])
def test_a_pickle_in_a_file_of_tensors_is_not_run(
    command: str, run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evil.ckpt"
    torch.save({**runs.checkpoint(run), "more": Evil(marker)}, file)
    argv = of_a_checkpoint(command, file, tmp_path) if command in COMMANDS else [command, str(file)]
    error = refused([*argv, *([str(tmp_path / "out")] if command == "export" else [])], marker, capsys)
    assert f"{file} cannot be read: it is made with getattr, which would run code" in error


def shards(run: Path, folder: Path, evil: Path | None = None) -> Path:
    """A checkpoint as a folder of shards, as torch writes it; with ``evil`` in what is no tensor."""
    content = runs.checkpoint(run)
    state = {"state_dict": content.pop("state_dict"), "optimizer_0": {"lr": 0.1 if evil is None else Evil(evil)}}
    folder.mkdir()
    save(state, checkpoint_id=folder, no_dist=True)
    torch.save(content, folder / "meta.pt")
    return folder


@pytest.mark.thorough("fit-index")
@pytest.mark.parametrize("place", ["index", "value"])
@pytest.mark.parametrize("command", ["fit", "export"])
def test_a_pickle_in_a_folder_of_shards_is_not_run(
    command: str, place: str, run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch unpickles its index, and what is no tensor, whatever stands there."""
    good = shards(run, tmp_path / "good.ckpt")
    assert main(["export", str(good), str(tmp_path / "of_good")]) == 0
    folder = shards(run, tmp_path / "evil.ckpt", marker if place == "value" else None)
    if place == "index":
        (folder / ".metadata").write_bytes(pickle.dumps(Evil(marker)))
    argv = (
        of_a_checkpoint(command, folder, tmp_path) if command == "fit" else [command, str(folder), str(tmp_path / "o")]
    )
    assert "would run code" in refused(argv, marker, capsys)


@pytest.mark.parametrize("part", [".metadata", "__0_0.distcp", "meta.pt"])
@pytest.mark.parametrize("command", ["fit", "export"])
def test_a_torn_folder_of_shards_is_refused(
    command: str, part: str, run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shards(run, tmp_path / "torn.ckpt")
    os.truncate(folder / part, (folder / part).stat().st_size // 2)
    argv = (
        of_a_checkpoint(command, folder, tmp_path) if command == "fit" else [command, str(folder), str(tmp_path / "o")]
    )
    assert "cannot be read: it is " in refused(argv, marker, capsys)


@pytest.mark.thorough("fit", "predict", "test", "validate")
@pytest.mark.parametrize("command", [*COMMANDS, "export"])
def test_a_damaged_checkpoint_is_what_its_manifest_says(
    command: str, run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run / "checkpoints", tmp_path / "checkpoints", symlinks=True)
    file = (folder / "last.ckpt").resolve()
    whole = file.read_bytes()
    argv = of_a_checkpoint(command, folder / "last.ckpt", tmp_path)
    argv = argv if command in COMMANDS else [command, str(folder / "last.ckpt"), str(tmp_path / "out")]
    file.write_bytes(whole[:1000])
    assert f".ckpt cannot be read: torn: 1,000 of {len(whole):,} bytes" in refused(argv, marker, capsys)
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    error = refused(argv, marker, capsys)
    assert ".ckpt cannot be read: altered: its checksum is another one" in error
    assert "fix: give another checkpoint" in error


def test_weights_of_a_model_are_no_pickle(
    run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "model")]) == 0
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Evil(marker)}, tmp_path / "model" / "pytorch_model.bin")
    argv = [
        "validate",
        f"--config={runs.QUICKSTART}",
        "--model.cold_start=null",
        f"--model.name_or_path={tmp_path / 'model'}",
    ]
    assert "would run code" in refused([*argv, f"--trainer.default_root_dir={tmp_path}"], marker, capsys)


@pytest.mark.thorough("config.json", "tokenizer_config.json")
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json", "chat_template.jinja", "kernel"])
def test_files_beside_the_weights_run_no_code(
    file: str, run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes of its own beside known ones are not taken; a template is in jinja's sandbox; kernels are code."""
    model = tmp_path / "model"
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(model)]) == 0
    (model / "own.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    name = {"kernel": "config.json"}.get(file, file)
    changes = {
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"},
        "config.json": {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}},
        "kernel": {"attn_implementation": "owner/kernel"},
    }
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}) + "\n")
    if file == "chat_template.jinja":
        code = f"__import__('pathlib').Path('{marker}').touch()"
        (model / name).write_text(f'{{{{ cycler.__init__.__globals__.__builtins__.eval("{code}") }}}}')
    else:
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | changes[file]))
        prompts.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    capsys.readouterr()
    argv = ["validate", f"--config={runs.QUICKSTART}", "--model.cold_start=null", f"--model.name_or_path={model}"]
    data = [
        f"--data.train={prompts}",
        f"--data.val={prompts}",
        "--data.rewards.correct=ExactMatch",
        "--data.max_response_tokens=4",
    ]
    code = main([*argv, *data, "--data.reward_workers=1", f"--trainer.default_root_dir={tmp_path}"])
    error = capsys.readouterr().err
    assert code == (2 if file in ("chat_template.jinja", "kernel") else 0), error
    assert not marker.exists()
    assert "did not expect" not in error
    if file == "kernel":
        assert "its files name the kernel 'owner/kernel' of the hub, whose code would be run" in error


def test_a_checkpoint_names_no_kernel(
    run: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = altered(run, tmp_path / "evil.ckpt", attn_implementation="owner/kernel")
    assert "of the hub, whose code would be run" in refused(
        ["export", str(file), str(tmp_path / "out")], marker, capsys
    )


@pytest.mark.parametrize("place", ["--config", "--data.rewards"])
def test_a_tag_of_yaml_makes_no_object(
    place: str, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{marker}']]"
    file = tmp_path / "evil.yaml"
    file.write_text(f"data: {tag}\n")
    refused(["fit", f"--config={runs.QUICKSTART}", f"{place}={file if place == '--config' else tag}"], marker, capsys)
    (tmp_path / "config.yaml").write_text(f"model: {tag}\n")
    (tmp_path / "summary.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 0  # a run's own config
    assert not marker.exists()
    assert "config.yaml is damaged" in capsys.readouterr().out
