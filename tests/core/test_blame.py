"""Whose mistake an exception is: read from its frames."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import PluginError, defined, is_own, mistake_of_plugin, place_of
from gspo_lightning.core.registry import import_plugins
from gspo_lightning.rewards import ExactMatch

CODE = """\
import json
from gspo_lightning.rewards import ExactMatch, Reward
from gspo_lightning.rewards.scores import to_score

class Strange(Reward):
    def score(self, completion: str) -> float:
        return helper(completion)

class Foreign(ExactMatch):
    def score(self, completion: str, truncated: bool = False, answer: object = "") -> float:
        return to_score("word", "x", "1")  # the package itself raises

def helper(completion):
    return json.loads(completion)
"""


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    file = tmp_path_factory.mktemp("plug") / "strange.py"
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("strange_plugin", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(call: object, *arguments: object) -> BaseException:
    with pytest.raises(Exception) as error:
        call(*arguments)  # type: ignore[operator]
    error.value.__traceback__ = error.value.__traceback__.tb_next if error.value.__traceback__ else None  # this file's
    return error.value


def test_the_place_is_the_plugins_own_line_and_not_that_of_the_library_below_it(strange: ModuleType) -> None:
    error = caught(strange.Strange().score, "no json")
    assert isinstance(error, json.JSONDecodeError)
    place = place_of(error)
    assert place is not None
    assert (Path(place.file).name, place.line, place.name) == ("strange.py", 14, "helper")
    assert place.expected == "Reward.score: Judge one sample; see the class."


@pytest.mark.parametrize(
    "folder", ["env/lib/python3.12/site-packages", "usr/lib/python3/dist-packages", "wheels/of_target"]
)
def test_a_package_of_another_environment_is_not_the_users_file(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH may name any folder of packages."""
    package = tmp_path / folder
    package.mkdir(parents=True)
    if folder == "wheels/of_target":  # pip install --target: the folder may have any name
        (package / "borrowed_package-1.0.dist-info").mkdir()
        (package / "borrowed_package-1.0.dist-info" / "METADATA").write_text("Name: borrowed_package\n")
    (package / "borrowed_package.py").write_text("def run(text):\n    return int(text)\n")
    monkeypatch.syspath_prepend(str(package))
    import borrowed_package  # type: ignore[import-not-found]

    assert place_of(caught(borrowed_package.run, "x")) is None
    assert mistake_of_plugin(caught(borrowed_package.run, "x")) is None
    sys.modules.pop("borrowed_package")


def test_the_mistake_says_place_and_expectation_in_its_first_and_last_line(strange: ModuleType) -> None:
    mistake = mistake_of_plugin(caught(strange.Strange().score, "no json"))
    assert isinstance(mistake, PluginError)
    first, last = str(mistake).splitlines()
    assert first.endswith("strange.py:14, in helper: raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
    assert "strange.py:14, in helper; expected: Reward.score: Judge one sample" in last
    assert mistake.frames.count("  File ") == 2
    assert "json/decoder.py" not in mistake.frames


def test_a_wrapped_exception_is_found(strange: ModuleType) -> None:
    def wrap() -> None:
        try:
            strange.Strange().score("no json")
        except ValueError as error:
            raise RuntimeError("something went wrong") from error

    assert mistake_of_plugin(caught(wrap)) is not None


def test_exceptions_of_this_package_are_not_blamed_on_a_plugin(strange: ModuleType) -> None:
    assert place_of(caught(strange.Foreign().score, "a")) is None
    assert mistake_of_plugin(caught(ExactMatch, 1, 2, 3, 4, 5)) is None


def test_where_a_method_is_defined(strange: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert defined(strange.Strange(), "score").endswith("/strange.py:6, in Strange.score")
    monkeypatch.chdir(Path(str(strange.__file__)).parent)
    assert defined(strange.Strange(), "score") == "strange.py:6, in Strange.score"
    assert is_own(ExactMatch)
    assert not is_own(strange.Strange)


def test_an_import_says_the_line(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("x = 1\n\ny = x.nothing\n")
    with pytest.raises(ValueError, match=r"AttributeError: .* \(line 3 of late\.py\)"):
        import_plugins([tmp_path / "late.py"])


def test_a_command_without_torch_accuses_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin, records = tmp_path / "wrong.py", tmp_path / "in.jsonl"
    plugin.write_text("from gspo_lightning.rewards import Reward\n\n\nclass Broken0(Reward):\n"
                      "    def score(self, completion: str) -> float:\n        return [].foo\n")  # fmt: skip
    records.write_text('{"completion": "a"}\n')
    files = [f"--input={records}", f"--output={tmp_path / 'out'}", "--plugins", str(plugin)]
    assert main(["score", "--reward", "Broken0", *files]) == 2
    lines = capsys.readouterr().err.strip().splitlines()[-2:]
    assert all(f"{plugin}:6, in Broken0.score" in line for line in lines)


def test_errors_module_imports_no_torch() -> None:
    code = "import sys, gspo_lightning.core.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
