"""The command line around training: help, versions, list, export, and where errors go."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gspo_lightning import __version__
from gspo_lightning.cli import COMMANDS, TRAINING, main
from gspo_lightning.commands.fit.help import GROUPS
from gspo_lightning.core import registry
from tests import ROOT


def test_usage_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in {**TRAINING, **COMMANDS}:
        assert f"  {name} " in shown


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: gspo COMMAND" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_module_and_console_script_are_one(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("gspo")
    for command in ([sys.executable, "-m", "gspo_lightning"], [str(script)]):
        done = subprocess.run([*command, "fitt"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert "did you mean fit" in done.stderr


@pytest.mark.parametrize("kind", registry.KINDS)
def test_list_shows_every_component_with_its_parameters(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    shown = capsys.readouterr().out
    known = registry.components(kind)
    assert known
    for name, cls in known.items():
        assert name in shown
        if cls.__module__.startswith("gspo_lightning."):  # other tests define plug-ins in this process
            assert cls.__doc__, f"{name} has no description"


def test_list_refuses_an_unknown_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "reward"]) == 2
    assert "did you mean rewards" in capsys.readouterr().err


def test_list_sees_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "polite.py"
    plugin.write_text(
        "from gspo_lightning.rewards import Reward\n"
        "class Polite(Reward):\n"
        "    'Pays for please.'\n"
        "    def score(self, completion: str) -> float:\n"
        "        return float('please' in completion)\n"
    )
    assert main(["list", "rewards", "--plugins", str(plugin)]) == 0
    assert "Pays for please." in capsys.readouterr().out


def test_help_shows_what_works_without_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "--traceback" in shown
    assert "--version" in shown
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"gspo (fit --config \w+)", shown)
    assert main([*command.split(), "--print_config"]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["fit", "predict"])
def test_short_help_is_one_page_of_settings_that_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    page = capsys.readouterr().out
    named = re.findall(r"^  --([\w.]+)  ", page, flags=re.MULTILINE)
    assert 28 <= len(named) <= 36
    assert len(page.splitlines()) <= 50
    assert "--help_all" in page
    assert main([command, "--help_all"]) == 0
    everything = capsys.readouterr().out
    assert [name for name in named if f"--{name}" not in everything] == []


def test_defaults_in_the_short_help_are_those_of_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--print_config"]) == 0
    defaults = yaml.safe_load(capsys.readouterr().out)
    checked = []
    for name, text in ((name, text) for group in GROUPS.values() for name, text in group.items()):
        said = re.search(r"\(default: ([\w.-]+)\)", text)
        if said is not None and "." in name and name != "data.reward_weights":
            section, setting = name.split(".")
            checked.append((name, yaml.safe_load(said[1]), defaults[section][setting]))
    assert len(checked) > 10
    assert [c for c in checked if c[1] != c[2]] == []


def test_the_short_help_needs_no_torch() -> None:
    code = "import sys; from gspo_lightning.cli import main; main(['fit', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.thorough
def test_help_describes_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help_all"]) == 0
    shown = capsys.readouterr().out
    assert "Responses per prompt" in shown
    assert "--data.group_size" in shown
    assert "Nucleus sampling" in shown  # of a setting within a setting


@pytest.mark.thorough
def test_help_describes_a_class_that_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model.cold_start.help"]) == 0
    assert "Steps of linear warm-up." in capsys.readouterr().out


def test_package_import_is_light() -> None:
    code = (
        "import sys, gspo_lightning, gspo_lightning.cli; sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.thorough
def test_a_rented_image_needs_few_packages() -> None:
    """The checks of a GPU import where torch, transformers and lightning are, without network: docs/gpu_checks.md."""
    absent = (
        "jsonargparse",
        "bitsandbytes",
        "math_verify",
        "tensorboard",
        "pydantic",
        "peft",
        "aiohttp",
        "gguf",
        "trl",
    )
    parts = ("attention", "start", "sampler", "fit", "fsdp2", "vllm_engine")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); from benchmarks.gpu_check import Bench, _parts"
    code += (
        f"\nfor part in _parts():\n    if part.name in {parts}: print(part.name, part.function(Bench.on(cuda=False)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(parts)]
    assert [line.split()[0] for line in lines] == list(parts)
    assert ["skipped" in line for line in lines] == [name in ("fit", "vllm_engine") for name in parts]


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["export", "nowhere.ckpt", "out"], "does not exist"),
        (["export", __file__, "out"], "cannot be read"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_commands_name_the_mistake(
    argv: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert word in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_export_keeps_an_existing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert main(["export", "any.ckpt", str(tmp_path / "out")]) == 2
    assert "--overwrite" in capsys.readouterr().err
