"""Registry of components that YAML can name (objectives, rewards, rollout sources ...), and plug-ins that add to them.

A component is a class. Defining a concrete subclass of one of the base classes registers it under its name: the
registry is a view on the class tree, so there is no second list that could disagree with it.

Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.errors import UserError, did_you_mean, place_of
from gspo_lightning.core.moved_names import current, say_moved

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS: dict[str, tuple[str, str]] = {
    "objectives": ("gspo_lightning.objectives", "Objective"),
    "advantages": ("gspo_lightning.loop.advantages", "Advantages"),
    "rewards": ("gspo_lightning.rewards", "Reward"),
    "rollouts": ("gspo_lightning.rollouts", "RolloutSource"),
    "environments": ("gspo_lightning.rollouts.environments", "Environment"),
    "tools": ("gspo_lightning.rollouts.environments", "Tool"),
    "agents": ("gspo_lightning.rollouts.agents", "Agent"),
    "old_policies": ("gspo_lightning.loop.old_policy", "OldPolicy"),
    "prompts": ("gspo_lightning.data.prompts", "PromptSet"),
    "curricula": ("gspo_lightning.data.prompts.curricula", "Curriculum"),
}
"""Kind -> (module, base class). Importing the module defines the built-in members of the kind."""

ENTRY_POINT_GROUP = "gspo_lightning.plugins"

_files: dict[str, Path] = {}
"""Module name -> file of modules that were loaded from a file."""


def base_class(kind: str) -> type[Any]:
    """Return the base class of a kind.

    Raises:
        UserError: no such kind.
    """
    if kind not in KINDS:
        raise UserError("kind", f"{kind!r} is not a kind of component; {did_you_mean(kind, KINDS)}")
    path, name = KINDS[kind]
    module = importlib.import_module(path)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)  # a package may import its members only when they are asked for
    base: type[Any] = getattr(module, name)
    return base


def components(kind: str) -> dict[str, type[Any]]:
    """Return every registered component of a kind by name, sorted.

    Raises:
        UserError: two different classes have one name.
    """
    classes: dict[str, type[Any]] = {}
    for cls in _concrete(base_class(kind)):
        other = classes.get(cls.__name__)
        if other is not None and _origin(other) != _origin(cls):
            raise UserError(
                f"{kind}.{cls.__name__}",
                f"defined twice, in {_where(other)} and in {_where(cls)}",
                fix="rename one of the two classes",
            )
        if other is None or not _is_current(other):  # the same module and qualname redefined (a notebook cell) replaces
            classes[cls.__name__] = cls
    return dict(sorted(classes.items()))


def defined(kind: str) -> list[str]:
    """Return the names of the components of a kind whose classes exist already, without importing any."""
    base = _imported(kind)
    return [] if base is None else sorted(cls.__name__ for cls in _concrete(base))


def _imported(kind: str) -> type[Any] | None:
    """Return the base class of a kind if it exists already: a package may import it only when it is accessed."""
    module, name = KINDS[kind]
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def _concrete(base: type[Any]) -> Iterator[type[Any]]:
    for cls in subclasses(base):
        if not (inspect.isabstract(cls) or cls.__name__.startswith("_") or "<locals>" in cls.__qualname__):
            yield cls


def component(kind: str, name: str) -> type[Any]:
    """Return one component by its short name or dotted path.

    Raises:
        UserError: nothing of that name; the message gives the nearest registered one.
    """
    registered = components(kind)
    say_moved(name)
    name = current(name)
    module, _, attribute = name.rpartition(".")
    exported = getattr(sys.modules.get(module), attribute, None)  # a package may export what a file of it defines
    for cls in registered.values():
        if name in (cls.__name__, f"{cls.__module__}.{cls.__qualname__}") or exported is cls:
            return cls
    raise UserError(kind, f"{name!r} is not registered; {did_you_mean(name, registered)}")


def import_plugins(paths: Iterable[str | Path], root: Path | None = None) -> list[str]:
    """Import plug-in files, folders and dotted modules, each under one canonical name; return those names.

    A file below ``root`` (the working directory) is imported as the dotted path from there, so a file and its dotted
    name are one module and not two; a file elsewhere gets a name made from its absolute path. A file that is already
    loaded as a module, under whatever name, stays that module. A folder means every ``*.py`` in it that does not start
    with an underscore. Installed packages join through the entry-point group ``gspo_lightning.plugins``. Without any
    path, nothing of the working directory can be imported.

    Raises:
        UserError: not found, not importable (with the real cause), or a name that is already taken.
    """
    root = (root or Path.cwd()).resolve()
    importlib.invalidate_caches()  # a plug-in may have been written a moment ago
    targets = [target for path in paths for target in _expand(str(path))]
    if targets:
        see_folder(root)
    names = [_import_one(target, root) for target in targets]
    for entry in entry_points():
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            raise _broken(f"entry point {entry.name} = {entry.value}", error) from error
    if names:
        for kind in KINDS:
            if _imported(kind) is not None:
                components(kind)  # refuses clashes
    return names


def entry_points() -> Sequence[EntryPoint]:
    """Return the plug-ins of installed packages."""
    from importlib import metadata  # slow to import, and workers never use it

    return tuple(metadata.entry_points(group=ENTRY_POINT_GROUP))


def installed_version(package: str) -> str:
    """Return the version of a package, such as this one; a checkout on PYTHONPATH has ``__version__`` but no metadata.

    >>> installed_version("gspo_lightning").count("."), installed_version("no-such-package")
    (2, 'not installed')
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(package.replace("-", "_")), "__version__", "not installed"))


def see_folder(root: Path) -> None:
    """Make plug-ins of a folder importable by their dotted names; installed packages come first."""
    if str(root) not in sys.path:  # a console script does not see ./plugins otherwise
        sys.path.append(str(root))


def load_source(name: str, file: Path) -> None:
    """Run a file as a module of that name, from its current source and not from stale bytecode.

    Bytecode is compared with its source by whole seconds and the size of the source.
    """
    spec = importlib.util.spec_from_loader(name, _Source(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


class _Source(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile the source, ignoring bytecode."""
        return self.source_to_code(self.get_data(self.path), self.path)


def check_plugin(path: str) -> None:
    """Check that a plug-in named as a file or folder exists.

    Raises:
        UserError: it does not.
    """
    for _ in _expand(path):
        pass


def plugin_files() -> dict[str, str]:
    """Return module name -> file of the plug-ins that were given as files, for other processes to find them, too."""
    return {name: str(file) for name, file in _files.items() if name in sys.modules}


def _expand(path: str) -> Iterator[str]:
    folder = Path(path)
    if folder.is_dir():
        yield from (str(f) for f in sorted(folder.glob("*.py")) if not f.name.startswith("_"))
    elif path.endswith(".py") or "/" in path:
        if not folder.is_file():
            raise UserError("plugins", f"{path!r} does not exist", fix="give a .py file, a folder or a dotted module")
        yield path
    else:
        yield path


def _import_one(target: str, root: Path) -> str:
    try:
        if not target.endswith(".py"):
            loaded = _loaded(_ordinary_import(target))
            importlib.import_module(loaded or target)
            return loaded or target
        return _import_file(Path(target).resolve(), root)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a script that ends by itself would end this process without a word
        raise _broken(target, error) from error


def _import_file(file: Path, root: Path) -> str:
    loaded = _loaded(file)
    if loaded is not None:  # under another working directory, through a link
        return loaded
    parts = file.relative_to(root).with_suffix("").parts if file.is_relative_to(root) else ()
    if not parts or not all(p.isidentifier() for p in parts):
        # a digest of the path: two files of one name are two plug-ins
        digest = hashlib.sha256(bytes(file)).hexdigest()[:8]
        return _load(f"gspo_plugin_{re.sub(r'[^0-9A-Za-z]', '_', file.stem)}_{digest}", file)
    name = ".".join(parts)
    installed = _ordinary_import(name)
    if installed is not None and installed != file and name in sys.modules:
        raise UserError(
            "plugins", f"{file} would be imported as {name}, but that is {installed}", fix="rename the file"
        )
    return _load(name, file)  # also where an installed package has its name: this file was asked for


def _ordinary_import(name: str) -> Path | None:
    """Return the file that ``import name`` would run, if any."""
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


def _loaded(file: Path | None) -> str | None:
    """Return the name under which a file is already a module of this process; ``__main__`` is not a name to import."""
    if file is None:
        return None
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name != "__main__" and origin is not None and origin.endswith(file.name) and Path(origin).resolve() == file:
            return name
    return None


def _load(name: str, file: Path) -> str:
    load_source(name, file)
    _files[name] = file
    return name


def _broken(what: str, error: BaseException) -> UserError:
    fix = "guard what is a script by if __name__ == '__main__'" if isinstance(error, SystemExit) else None
    place = place_of(error)
    at = f" (line {place.line} of {Path(place.file).name})" if place is not None else ""
    return UserError("plugins", f"{what} cannot be imported: {type(error).__name__}: {error}{at}", fix=fix)


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    """Yield subclasses of any depth, the nearest first, each once."""
    queue: list[type[Any]] = list(base.__subclasses__())
    ordered: dict[type[Any], None] = {}
    while queue:
        cls = queue.pop(0)
        if cls not in ordered:
            ordered[cls] = None
            queue.extend(cls.__subclasses__())
    yield from ordered


def _origin(cls: type[Any]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _is_current(cls: type[Any]) -> bool:
    """True if its module still holds this class under its name, and not a newer definition."""
    return getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls


def _where(cls: type[Any]) -> str:
    module = sys.modules.get(cls.__module__)
    return str(getattr(module, "__file__", None) or cls.__module__)


def parameters(cls: type[Any]) -> Sequence[inspect.Parameter]:
    """Return the constructor parameters of a component, without ``self``."""
    signature = inspect.signature(cls)
    return [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
