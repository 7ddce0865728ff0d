"""Commands that install what an extra of this package needs, for messages."""

from __future__ import annotations

from importlib import metadata

PACKAGE = "gspo_lightning"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, in the versions that this package asks for.

    It names those packages and not this one, which may have come from a clone or a file and need not be on an index.

    >>> install_command("lora")
    "pip install 'peft>=0.17'"

    Args:
        extra: name of an extra in ``pyproject.toml``.

    Raises:
        KeyError: there is no such extra.
    """
    from packaging.requirements import Requirement  # not at the top: rewards are read by Pythons without packages, too

    try:
        requirements = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    except metadata.PackageNotFoundError:  # a source folder on PYTHONPATH, which was never installed
        return f"pip install '.[{extra}]' in the source folder of {PACKAGE}"
    packages = [
        f"'{requirement.name}{requirement.specifier}'"
        for requirement in requirements
        if f'extra == "{extra}"' in str(requirement.marker)  # on any platform
    ]
    if not packages:
        raise KeyError(extra)
    return f"pip install {' '.join(packages)}"
