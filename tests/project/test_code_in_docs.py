"""Every block of code in docs/ is held to the program: Python runs, YAML is read, commands are parsed.

A block under ``<!-- path -->`` is a file: it is written, and whatever names it finds it. Python blocks of a page share
names and run in order. YAML goes through the parser of ``gspo fit`` over the quickstart (or the reader of suites).
Commands are parsed by the program's own parsers and not carried out: those of the README are
(``tests/test_readme.py``).
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gspo_lightning.cli import COMMANDS, TRAINING, main
from gspo_lightning.training.suites.suite import load_suite
from tests import ROOT
from tests.support.pages import PAGES, blocks

SHOWN = {"diff", "text", "json"}
CONFIG = {"model", "data", "trainer", "plugins", "seed_everything"}


class Parsed(BaseException):  # `main` answers for every Exception
    """The command's own parser took the line."""

    def __init__(self, rest: Sequence[str]) -> None:
        super().__init__()
        self.rest = list(rest)


def of(language: str) -> Iterator[Any]:
    for page in PAGES:
        texts = [(name, text) for name, known, text in blocks(page) if known == language]
        if texts:
            yield pytest.param(page, texts, id=page.stem)


@pytest.fixture
def folder(page: Path, page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page shows as the working directory."""
    made = page_folder(page.relative_to(ROOT / "docs").with_suffix("").as_posix())
    monkeypatch.chdir(made)
    return made


def test_blocks_name_a_language_that_is_tried() -> None:
    odd = {f"{page.name}: {language}" for page in PAGES for _, language, _ in blocks(page)}
    assert {word.split(": ")[1] for word in odd} <= {"python", "yaml", "bash", *SHOWN}, odd


@pytest.mark.thorough("python")
@pytest.mark.parametrize(("page", "texts"), of("python"))
def test_python_runs(page: Path, texts: list[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any("import trl" in text or "from trl" in text for _, text in texts):
        pytest.importorskip("trl")
        # TRL's default is bf16, which its configuration refuses on a machine without a GPU
        monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    names: dict[str, Any] = {"__name__": page.stem}
    for name, text in texts:
        if not name:
            exec(compile(text, page.name, "exec"), names)


@pytest.mark.thorough(
    "agents",
    "cold_start",
    "environments",
    "extend",
    "from_trl",
    "hub",
    "lightning",
    "mixtures",
    "reward_models",
    "rewards",
    "rollouts",
    "running",
    "vision",
)
@pytest.mark.parametrize(("page", "texts"), of("yaml"))
def test_yaml_is_read(
    page: Path, texts: list[tuple[str, str]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (_, text) in enumerate(texts):
        file = folder / f"block{number}.yaml"
        file.write_text(text)
        values = yaml.safe_load(text)
        if "samples" in values:  # a suite
            assert load_suite(str(file)).samples == values["samples"]
            continue
        assert set(values) <= CONFIG, f"{page.name}: {sorted(values)}"
        if page.stem == "reward_models" and "rewards" not in values["data"]:
            assert main(["fit-reward", f"--config={file}", "--print_config"]) == 0, text
            assert set(values["data"]) <= set(yaml.safe_load(capsys.readouterr().out)["data"])
            continue
        assert main(["fit", "--config=configs/quickstart.yaml", f"--config={file}", "--print_config"]) == 0, text
        printed = yaml.safe_load(capsys.readouterr().out)
        assert set(values) - {"plugins"} <= set(printed)


def parse(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads a command line as the program would, to the point where it would begin.

    Raises:
        AssertionError: it is no command, or an option that is not there.
    """
    _, command, *rest = shlex.split(line, comments=True)
    for option, file in itertools.pairwise(rest):
        if option == "--config" and file.endswith(".yaml") and not Path(file).exists():  # the reader's own
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("configs/quickstart.yaml", file)
    if command in TRAINING or command == "fit-reward":
        words = [word for word in rest if not word.startswith("$")]
        assert main([command, *words, "--print_config"]) == 0, line
        return
    assert command in COMMANDS, line
    passes_on = command in ("plan", "compare", "evaluate")  # what they do not know goes to `gspo fit`
    method = "parse_known_args" if passes_on else "parse_args"
    original = getattr(argparse.ArgumentParser, method)

    def parse_only(self: argparse.ArgumentParser, *words: Any) -> Any:
        found = original(self, *words)
        raise Parsed(found[1] if passes_on else [])

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, method, parse_only)
        with pytest.raises(Parsed) as parsed:
            main([command, *rest])
    if parsed.value.rest:
        assert main(["fit", "--config=configs/quickstart.yaml", *parsed.value.rest, "--print_config"]) == 0, line


@pytest.mark.thorough(
    "agents",
    "cold_start",
    "distillation",
    "distributed",
    "extend",
    "hub",
    "real_model",
    "rollouts",
    "running",
    "vision",
)
@pytest.mark.parametrize(("page", "texts"), of("bash"))
def test_commands_are_parsed(
    page: Path, texts: list[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for _, text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("gspo "):
                parse(line, monkeypatch)
                assert "error" not in capsys.readouterr().err, line
