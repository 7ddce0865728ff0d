"""Names: short, dotted, mistyped; plug-ins from files, folders and modules; clashes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.registry import component, components, import_plugins
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.rollouts import GroupedSampler, TransformersGenerate

KIND = """\
from abc import ABC, abstractmethod

class Thing(ABC):
    @abstractmethod
    def work(self): ...

class BuiltIn(Thing):
    def work(self): ...

class Unfinished(Thing):
    pass

class _Hidden(BuiltIn):
    pass

def make():
    class Local(BuiltIn):
        pass
    return Local

LOCAL = make()
"""
PLUGIN = """\
from toy_kind import BuiltIn, Thing

class {name}({base}):
    def work(self): ...
"""


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A kind of component of this test alone; its plug-ins are forgotten afterwards."""
    module = types.ModuleType("toy_kind")
    exec(KIND, vars(module))
    monkeypatch.setitem(sys.modules, "toy_kind", module)
    monkeypatch.setattr(registry, "KINDS", {"things": ("toy_kind", "Thing")})
    monkeypatch.setattr(sys, "path", list(sys.path))
    kept = {name: module for name, module in sys.modules.items() if _is_plugin(name)}
    for name in kept:
        del sys.modules[name]
    yield "things"
    for name in [name for name in sys.modules if _is_plugin(name)]:
        del sys.modules[name]
    sys.modules.update(kept)


def _is_plugin(module: str) -> bool:
    return module.split(".")[0] in {"plugins", "clash_a", "clash_b"} or module.startswith("gspo_plugin_")


def write(file: Path, name: str, base: str = "Thing") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PLUGIN.format(name=name, base=base))
    return file


def test_built_in_components_are_listed_by_short_name() -> None:
    found = components("rollouts")
    assert found["GroupedSampler"] is GroupedSampler
    assert found["TransformersGenerate"] is TransformersGenerate
    assert "RolloutSource" not in found  # abstract
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    "name", ["ChainTask", "gspo_lightning.data.prompts.tasks.chain.ChainTask", "gspo_lightning.data.prompts.ChainTask"]
)
def test_short_and_dotted_names_find_the_same_class(name: str) -> None:
    assert component("prompts", name) is ChainTask


def test_a_typo_gets_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'ChianTask' is not registered; did you mean ChainTask\?"):
        component("prompts", "ChianTask")


def test_an_unknown_kind_gets_the_nearest_kind() -> None:
    with pytest.raises(UserError, match="did you mean rollouts"):
        components("rollout")


def test_abstract_private_and_local_classes_do_not_register(things: str) -> None:
    assert list(components(things)) == ["BuiltIn"]


def test_a_file_below_the_working_directory_is_its_dotted_module(things: str, tmp_path: Path) -> None:
    write(tmp_path / "plugins" / "mine.py", "Mine")
    assert import_plugins([tmp_path / "plugins" / "mine.py"], root=tmp_path) == ["plugins.mine"]
    found = component(things, "Mine")
    assert found is component(things, "plugins.mine.Mine")
    assert found is importlib.import_module("plugins.mine").Mine  # one module, not two
    assert import_plugins(["plugins.mine"], root=tmp_path) == ["plugins.mine"]
    assert component(things, "Mine") is found


def test_another_package_of_the_folders_name_is_not_in_the_way(
    things: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "site"
    write(other / "plugins" / "theirs.py", "Theirs")
    (other / "plugins" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(other))
    importlib.import_module("plugins.theirs")
    write(tmp_path / "work" / "plugins" / "mine.py", "Mine")
    for _ in range(2):
        assert import_plugins([tmp_path / "work" / "plugins"], root=tmp_path / "work") == ["plugins.mine"]
        assert component(things, "Mine") is importlib.import_module("plugins.mine").Mine


def test_a_file_is_one_module_wherever_the_working_directory_is(things: str, tmp_path: Path) -> None:
    file = write(tmp_path / "plugins" / "mine.py", "Mine")
    for folder in ("elsewhere", "linked"):
        (tmp_path / folder).mkdir()
    (tmp_path / "linked" / "plugins").symlink_to(tmp_path / "plugins")
    first = import_plugins([file], root=tmp_path)
    found = component(things, "Mine")
    assert import_plugins([file], root=tmp_path / "elsewhere") == first
    assert import_plugins([tmp_path / "linked" / "plugins"], root=tmp_path / "linked") == first
    assert component(things, "Mine") is found


def test_a_dotted_name_finds_the_file_that_was_loaded_under_another(things: str, tmp_path: Path) -> None:
    file = write(tmp_path / "clash_a" / "mine.py", "Mine")
    (tmp_path / "elsewhere").mkdir()
    first = import_plugins([file], root=tmp_path / "elsewhere")
    assert first[0].startswith("gspo_plugin_mine_")
    assert registry.plugin_files()[first[0]] == str(file)
    assert import_plugins(["clash_a.mine"], root=tmp_path) == first
    assert component(things, "Mine").__module__ == first[0]


def test_a_folder_means_its_public_files(things: str, tmp_path: Path) -> None:
    for file, name in (("first", "First"), ("second", "Second"), ("_private", "Private")):
        write(tmp_path / "plugins" / f"{file}.py", name)
    (tmp_path / "plugins" / "__init__.py").write_text("")
    assert import_plugins([tmp_path / "plugins"], root=tmp_path) == ["plugins.first", "plugins.second"]
    assert list(components(things)) == ["BuiltIn", "First", "Second"]


def test_files_outside_the_working_directory_are_told_apart_by_their_path(things: str, tmp_path: Path) -> None:
    one = write(tmp_path / "my-plugins" / "mine.py", "One")
    two = write(tmp_path / "more-plugins" / "mine.py", "Two")
    root = tmp_path / "work"
    root.mkdir()
    names = import_plugins([one, two], root=root)
    assert len(set(names)) == 2
    assert list(components(things)) == ["BuiltIn", "One", "Two"]
    first = component(things, "One")
    assert import_plugins([one], root=root) == names[:1]  # again: the same module, not a second class
    assert component(things, "One") is first
    assert sys.modules[names[0]].__file__ == str(one)


def test_the_working_directory_is_the_default_root(
    things: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "plugins" / "mine.py", "Mine")
    monkeypatch.chdir(tmp_path)
    assert import_plugins(["plugins/mine.py"]) == ["plugins.mine"]
    assert "Mine" in components(things)


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize("name", ["nowhere.py", "no/where", "plugins/none.py"])
def test_a_plugin_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist") as caught:
        import_plugins([name], root=tmp_path)
    assert caught.value.field == "plugins"


@pytest.mark.usefixtures("things")
def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no_such_module cannot be imported: ModuleNotFoundError"):
        import_plugins(["no_such_module"], root=tmp_path)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError"),
    ],
)
@pytest.mark.parametrize("below_root", [True, False])
def test_a_broken_plugin_shows_its_real_cause(
    source: str, cause: str, below_root: bool, things: str, tmp_path: Path
) -> None:
    file = tmp_path / "plugins" / "broken.py"
    file.parent.mkdir()
    file.write_text(source)
    root = tmp_path if below_root else tmp_path / "elsewhere"
    with pytest.raises(UserError, match=r"broken\.py cannot be imported") as caught:
        import_plugins([file], root=root)
    assert cause in str(caught.value)
    assert caught.value.__cause__ is not None
    write(file, "Mended")  # a failed import leaves no half module behind
    import_plugins([file], root=root)
    assert "Mended" in components(things)


@pytest.mark.usefixtures("things")
def test_a_users_mistake_inside_a_plugin_stays_one_message(tmp_path: Path) -> None:
    file = tmp_path / "plugins" / "broken.py"
    file.parent.mkdir()
    file.write_text("from gspo_lightning.core.errors import UserError\nraise UserError('mine', 'is wrong')\n")
    with pytest.raises(UserError, match=r"^mine: is wrong$"):
        import_plugins([file], root=tmp_path)


@pytest.mark.usefixtures("things")
def test_a_file_that_would_be_taken_for_another_module_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "json.py", "JsonThing")
    with pytest.raises(UserError, match=r"would be imported as json, but that is .*json/__init__\.py") as caught:
        import_plugins([tmp_path / "json.py"], root=tmp_path)
    assert caught.value.fix == "rename the file"


@pytest.mark.usefixtures("things")
def test_two_plugins_of_one_name_are_refused_with_both_places(tmp_path: Path) -> None:
    write(tmp_path / "clash_a.py", "Same")
    write(tmp_path / "clash_b.py", "Same")
    with pytest.raises(UserError, match=r"things\.Same: defined twice") as caught:
        import_plugins([tmp_path / "clash_a.py", tmp_path / "clash_b.py"], root=tmp_path)
    assert "clash_a.py" in str(caught.value)
    assert "clash_b.py" in str(caught.value)


@pytest.mark.usefixtures("things")
def test_a_plugin_may_not_take_a_built_in_name(tmp_path: Path) -> None:
    (tmp_path / "clash_a.py").write_text(PLUGIN.format(name="BuiltIn", base="Thing"))
    with pytest.raises(UserError, match=r"things\.BuiltIn: defined twice"):
        import_plugins([tmp_path / "clash_a.py"], root=tmp_path)


@pytest.mark.parametrize("bases", ["Thing Thing", "BuiltIn Thing", "Thing BuiltIn"])
def test_a_class_defined_again_in_the_same_place_replaces_the_old_one(
    bases: str, things: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    kept = []  # like the output history of a notebook: the old class stays alive
    for base in bases.split():
        exec(PLUGIN.format(name="Cell", base=base), vars(notebook))
        kept.append(notebook.Cell)
        assert component(things, "Cell") is kept[-1]


def test_the_registry_and_its_plugins_load_without_torch(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "light.py").write_text("VALUE = 1\n")
    program = (
        "import sys\nfrom gspo_lightning.core.registry import import_plugins\n"
        "print(import_plugins(['plugins/light.py']), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[0] == "['plugins.light'] False"


def test_a_plugin_that_ends_the_process_is_a_mistake_with_a_message(things: str, tmp_path: Path) -> None:
    file = tmp_path / "clash_b.py"
    file.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UserError, match="cannot be imported: SystemExit: 3"):
        import_plugins([file], root=tmp_path)


def test_only_public_rollout_sources_are_registered() -> None:
    """Also when everything is imported that a run imports."""
    importlib.import_module("gspo_lightning.training.module")
    own = {name for name, cls in components("rollouts").items() if cls.__module__.startswith("gspo_lightning.")}
    assert {"GroupedSampler", "VLLMServer"} <= own <= set(importlib.import_module("gspo_lightning.rollouts").__all__)
