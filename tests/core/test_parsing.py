"""YAML is read within bounds, and what is wrong with a file is one message that names it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.core.parsing import load_yaml


def levels(first: str, inner: str) -> str:
    """Nine levels of nine aliases each: 9^9 = 387,420,489 values."""
    names = "abcdefghi"
    rest = (f"{n}: &{n} {inner.format(', '.join([f'*{b}'] * 9))}\n" for b, n in itertools.pairwise(names))
    return f"a: &a {first}\n" + "".join(rest)


BAD = {
    "aliases": (
        levels("[x, x, x, x, x, x, x, x, x]", "[{}]"),
        r"its aliases \(\*name\) stand for 9\d\d,\d{3},\d{3} char",
    ),
    "merges": (levels("{x: 1}", "{{<<: [{}]}}"), r"its aliases \(\*name\) stand for"),
    "itself": ("data: &a {train: [*a]}", "an alias .* stands within what it stands for"),
    "brackets": ("data: " + "[" * 5000, "nested too deeply"),
    "lists": ("data: " + "[" * 150 + "]" * 150, "nested too deeply"),
    "a date": ("data: 2024-13-41", "a value cannot be read: month must be in 1..12"),
    "a number": (f"seed_everything: {'1' * 60_000}", "a value cannot be read: Exceeds the limit"),
    "a bool": ("data: !!bool maybe", "a value cannot be read"),
    "code": ("data: !!python/object/apply:os.system [x]", "could not determine a constructor"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD)
def test_malformed_or_excessive_yaml_is_a_yaml_error(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError, match=said):
        load_yaml(text)


def test_aliases_that_stand_for_little_are_followed() -> None:
    assert load_yaml("x: &x {p: [1]}\ny: *x\nz: {<<: *x, q: 2}\n") == {
        "x": {"p": [1]}, "y": {"p": [1]}, "z": {"p": [1], "q": 2},
    }  # fmt: skip
    assert load_yaml("") is None
    long = "prompts:\n" + "  - some text of a prompt\n" * 20_000
    assert len(load_yaml(long)["prompts"]) == 20_000


@pytest.mark.thorough(
    "compare --config-brackets",
    "evaluate --suite aime2024 --config-brackets",
    "evaluate --suite-brackets",
    "fit --config-brackets",
    "plan --config-brackets",
)
@pytest.mark.parametrize("text", [text for text, _ in BAD.values()], ids=BAD)
@pytest.mark.parametrize(
    "command",
    ["fit --config", "plan --config", "evaluate --suite", "evaluate --suite aime2024 --config", "compare --config"],
)  # fmt: skip
def test_a_command_names_the_file(
    command: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("sub/bad.yaml").write_text(text)
    argv = [*command.split(), "sub/bad.yaml"]
    argv += ["--output", "out"] if "evaluate" in command or "compare" in command else []
    argv += ["--model", "tiny-qwen3"] if command == "evaluate --suite" else []
    argv += ["--objectives", "GSPO,GRPO"] if "compare" in command else []
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "error: sub/bad.yaml" in said, said
    assert "is not YAML" in said
    assert len(said) < 2000
