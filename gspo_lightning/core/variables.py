"""Environment variables of programs that a run starts: a secret among them is named in the config, never written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gspo_lightning.core.errors import UserError

_NAMED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SECRET = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "PAT"}
"""Words of a variable's name that say that its value is a secret."""
_KEYS = re.compile(r"(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|hf|xox[abp]|AKIA)[-_]?[A-Za-z0-9_-]{16,}|Bearer .+")
"""Keys by the beginnings that their issuers give them."""
_PLAIN = re.compile(r"[\d.]*|true|false|yes|no|on|off", re.IGNORECASE)
_LEAST = 6
"""Characters of a value from which it is taken out of texts; a shorter one may be a word of them."""


def check_variables(variables: Mapping[str, str], field: str) -> dict[str, str]:
    """Check the variables of a setting: a run saves its config, so that a secret in it would be written.

    Args:
        variables: name -> value; ``$NAME`` stands for the variable NAME of the trainer.
        field: the setting, for messages.

    Returns:
        The same variables, nothing of them replaced.

    Raises:
        UserError: a value is a secret, by its own look or by the name of its variable.

    >>> check_variables({"GITHUB_TOKEN": "$GITHUB_TOKEN", "MAX_TOKEN": "512"}, "McpTool.environment")["MAX_TOKEN"]
    '512'
    """
    for name, value in variables.items():
        if not isinstance(value, str):
            raise UserError(f"{field}.{name}", f"is {value!r}, but must be text", fix="put it in quotes")
        secret = _SECRET & {word.upper() for word in re.split(r"[_\-.]", name)} and not _PLAIN.fullmatch(value)
        if not _NAMED.fullmatch(value) and (secret or _KEYS.fullmatch(value)):
            raise UserError(
                f"{field}.{name}",
                "is a secret, and a run saves its config",
                fix=f'name a variable of the trainer\'s environment instead of its value: {name}: "$NAME"',
            )
    return dict(variables)


def read_variables(variables: Mapping[str, str], field: str) -> dict[str, str]:
    """Return the variables with the values of the trainer's environment in the place of ``$NAME``.

    Raises:
        UserError: a variable that is named is not set.
    """
    found = dict(variables)
    for name, value in variables.items():
        if (named := _NAMED.fullmatch(value)) is not None:
            if named[1] not in os.environ:
                fix = f"export {named[1]}=... before the command"
                raise UserError(f"{field}.{name}", f"names the variable {named[1]}, which is not set", fix=fix)
            found[name] = os.environ[named[1]]
    return found


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with ``$NAME`` in the place of the value that the trainer's environment has for it.

    Args:
        text: of a program that knows the values, such as its error or its answer.
        variables: of the setting, as :func:`check_variables` returns them.
    """
    for value in variables.values():
        if (named := _NAMED.fullmatch(value)) is not None and len(secret := os.environ.get(named[1], "")) >= _LEAST:
            text = text.replace(secret, value)
    return text
