"""Secrets in settings: a run saves its config, so a secret is named by its environment variable, never written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from gspo_lightning.core.errors import UserError

_NAMED = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_SECRET = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "PAT"}
"""Words of a variable's name that say that its value is a secret."""
_KEYS = re.compile(r"(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|hf|xox[abp]|AKIA)[-_]?[A-Za-z0-9_-]{16,}|Bearer .+")
"""Keys by the beginnings that their issuers give them."""
_IN_TEXT = re.compile(
    r"(?<![\w/.-])(?:sk-[A-Za-z0-9]{20,}|sk-(?:proj|ant|or|svcacct)-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}"
    r"|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}(?!\w)|Bearer\s+(?=\S*\d)\S{16,})"
)
"""Keys of known issuers inside a text, such as a command: long enough that no name of a model or file is one."""
_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")
_NAMES = {
    "apikey", "apitoken", "accesstoken", "authtoken", "hftoken", "password", "passwd", "passphrase", "secret",
    "secretkey", "clientsecret", "accesskey", "authorization", "xapikey",
}  # fmt: skip
"""Names of settings, options and headers whose value is a secret, without case, ``-`` and ``_``."""
_PROSE = ("system_prompt", "prompt", "about", "rubric", "environment")
"""Settings that are not searched: texts about anything, and variables, which have a check of their own."""
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
        words = {word.upper() for word in re.split(r"[_\-.]", name)}
        is_secret = bool(_SECRET & words) and not _PLAIN.fullmatch(value)
        if not _NAMED.fullmatch(value) and (is_secret or _KEYS.fullmatch(value)):
            raise UserError(
                f"{field}.{name}",
                "is a secret, and a run saves its config",
                fix=f'name a variable of the trainer\'s environment instead of its value: {name}: "$NAME"',
            )
    return dict(variables)


def check_settings(settings: Any, field: str = "") -> None:
    """Check that no setting holds a secret, in loggers, commands and arguments of plug-ins alike.

    Args:
        settings: the config as plain data.
        field: its name; empty for the whole config.

    Raises:
        UserError: a text holds a key of a known issuer or a URL with a password, or its name says that it is a secret.

    >>> check_settings({"logger": {"api_key": None}, "model": "hf-internal-testing/tiny-random-gpt2", "pad_token": "x"})
    """
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if name not in _PROSE:
                check_settings(value, f"{field}.{name}" if field else str(name))
    elif isinstance(settings, list | tuple):
        for place, value in enumerate(settings):
            before = settings[place - 1] if place else None
            option = before if isinstance(before, str) and before.startswith("-") else ""
            check_settings(value, f"{field}.{option.lstrip('-')}" if option else field)
    elif isinstance(settings, str) and _holds_secret(field.rpartition(".")[2], settings):
        raise UserError(
            field,
            "holds a password or a key, and a run saves its config",
            fix="give it in an environment variable of the command: libraries read their own (WANDB_API_KEY, "
            "HF_TOKEN, MLFLOW_TRACKING_PASSWORD), and environment: {NAME: $NAME} hands one to a program",
        )


def _holds_secret(name: str, value: str) -> bool:
    option, equals, rest = value.partition("=")
    if equals and option.startswith("-"):
        return _holds_secret(option, rest)
    if re.sub(r"[-_]", "", name).lower() in _NAMES and not _PLAIN.fullmatch(value) and not _NAMED.fullmatch(value):
        return True
    return bool(_IN_TEXT.search(value) or _PASSWORD.search(value))


def read_variables(variables: Mapping[str, str], field: str) -> dict[str, str]:
    """Return the variables with the values of the trainer's environment in the place of ``$NAME``.

    Raises:
        UserError: a variable that is named is not set.
    """
    values = dict(variables)
    for name, value in variables.items():
        reference = _NAMED.fullmatch(value)
        if reference is None:
            continue
        variable = reference[1]
        if variable not in os.environ:
            raise UserError(
                f"{field}.{name}",
                f"names the variable {variable}, which is not set",
                fix=f"export {variable}=... before the command",
            )
        values[name] = os.environ[variable]
    return values


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with ``$NAME`` in the place of the value that the trainer's environment has for it.

    Args:
        text: of a program that knows the values, such as its error or its answer.
        variables: of the setting, as :func:`check_variables` returns them.
    """
    for value in variables.values():
        reference = _NAMED.fullmatch(value)
        secret = os.environ.get(reference[1], "") if reference is not None else ""
        if len(secret) >= _LEAST:
            text = text.replace(secret, value)
    return text
