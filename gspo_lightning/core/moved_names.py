"""Moved names: what configs, plug-ins and notebooks name where it was before the wings is still found, with a message.

An import of an old name gives the module that stands under its new one, not a copy: a class is one class, whatever it
was called. :func:`current` is the same for names in texts, such as the class paths of a config.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "advantages": "loop.advantages",
    "callbacks": "training.callbacks",
    "critic": "loop.critic",
    "environments": "rollouts.environments",
    "errors": "core.errors",
    "inspect": "commands.inspect",
    "old_policy": "loop.old_policy",
    "prompts": "data.prompts",
    "registry": "core.registry",
    "sandbox": "rewards.sandbox",
    "statistics": "report.statistics",
    "strategies": "policy.strategies",
    "types": "core.types",
}
"""Old name in the package -> new one; what is inside of a package goes with it."""
_PACKAGE = "gspo_lightning"


def current(path: str) -> str:
    """Return the dotted name under which a module, or what is in it, is found now.

    >>> current("gspo_lightning.prompts.PromptFile"), current("gspo_lightning.rewards.Reward"), current("json.loads")
    ('gspo_lightning.data.prompts.PromptFile', 'gspo_lightning.rewards.Reward', 'json.loads')
    """
    package, _, rest = path.partition(".")
    first, dot, inside = rest.partition(".")
    return f"{package}.{MOVED[first]}{dot}{inside}" if package == _PACKAGE and first in MOVED else path


def say_moved(path: str) -> None:
    """Log once for each old module that it has moved; nothing for a name that has not."""
    old = ".".join(path.split(".")[:2])
    new = current(old)
    if new != old:
        from gspo_lightning.core.errors import say_renamed  # errors are not needed to find a module

        say_renamed(old, new)


class _OldNames(MetaPathFinder, Loader):
    """Finder and loader of old names; it comes first, or the folder of a moved package would be read a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, None for all others."""
        return ModuleSpec(fullname, self) if current(fullname) != fullname else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave the module to :meth:`exec_module`."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of the old one."""
        say_moved(module.__name__)
        sys.modules[module.__name__] = importlib.import_module(current(module.__name__))


def accept_old_names() -> None:
    """Let old names be imported in this process."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())
