"""``--config`` takes a file, or the name of a config that ships, in whichever folder a command runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.configs import FOLDER, about, built_in, config_file
from gspo_lightning.core.errors import UserError
from tests import ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_yaml_at_the_top_is_built_in() -> None:
    there = {p.relative_to(ROOT / "configs").as_posix() for p in (ROOT / "configs").rglob("*.yaml")}
    assert {f"{name}.yaml" for name in built_in()} == there
    assert {"quickstart", "fsdp2", "data/math", "models/qwen3_8b"} <= built_in().keys()
    assert all(
        file.read_bytes() == (ROOT / "configs" / f"{name}.yaml").read_bytes() for name, file in built_in().items()
    )


@pytest.mark.parametrize(
    "word", ["data/gsm8k", "data/gsm8k.yaml", "configs/data/gsm8k.yaml", "./configs/data/gsm8k.yaml"]
)
def test_a_name_may_be_written_with_suffix_and_folder(word: str) -> None:
    assert config_file(word) == FOLDER / "data" / "gsm8k.yaml"


def test_an_existing_file_is_taken_first_and_a_folder_is_not_one(elsewhere: Path) -> None:
    (elsewhere / "quickstart").mkdir()
    assert config_file("quickstart") == FOLDER / "quickstart.yaml"
    (elsewhere / "lora").write_text("trainer: {max_epochs: 3}\n")
    assert config_file("lora") == Path("lora")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("quickstrat", "did you mean quickstart?"),
        ("qwen3_8b", "did you mean models/qwen3_8b or"),
        ("data/gsm", "did you mean data/gsm8k or"),
        ("trian.yaml", "did you mean train.yaml?"),
        ("zzz", "it is neither a file nor a built-in config"),
    ],
)
def test_a_wrong_name_lists_near_ones(
    word: str, near: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "train.yaml").touch()
    with pytest.raises(UserError) as raised:
        config_file(word)
    assert near in str(raised.value)
    for command in (["fit"], ["compare", "--objectives=GSPO,GRPO"], ["evaluate", "--suite=aime2024"]):
        assert main([*command, "--config", word]) == 2
        assert near in capsys.readouterr().err


def test_built_in_configs_and_overlays_are_those_of_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        assert main(["fit", *words, "--print_config"]) == 0
        return capsys.readouterr().out

    named = printed("--config", "quickstart", "--config=fsdp2")
    assert named == printed(*(f"--config={ROOT / 'configs' / name}.yaml" for name in ("quickstart", "fsdp2")))
    assert "class_path: gspo_lightning.policy.strategies.FSDP2Strategy" in named


@pytest.mark.thorough
def test_plan_takes_names_and_a_built_in_config_finds_its_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "quickstart", "--config", "brevity"]) == 0
    assert "32 prompts x 8 responses" in capsys.readouterr().out


def test_list_configs_shows_each_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list", "configs"]) == 0
    shown = capsys.readouterr().out
    for name, file in built_in().items():
        line = next(line for line in shown.splitlines() if f"│ {name} " in line)
        assert about(file).endswith("."), name
        assert about(file) in line
