"""Translate jsonargparse errors, which speak of parser internals, into one clear message."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace

from gspo_lightning.commands.fit.arguments import config_files, settings
from gspo_lightning.commands.fit.defaults import DEFAULT_CLASSES
from gspo_lightning.commands.fit.fields import Fields
from gspo_lightning.commands.fit.foreign import foreign, translation
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError, did_you_mean, mistake_of_plugin


def training_fields() -> Fields:
    """Return the valid settings of a config of ``gspo fit``."""
    from lightning.pytorch import Trainer

    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule

    sections = {
        "seed_everything": bool | int,
        "plugins": list[str] | str,
        "allow_changed_config": bool,
        "ckpt_path": str | None,
        "weights_only": Any,
        "return_predictions": Any,
        "verbose": Any,
        "trainer": Trainer,
        "model": GSPOModule,
        "data": PromptDataModule,
    }
    defaults = {}
    for field, path in {**DEFAULT_CLASSES, "model.optimizer": "torch.optim.AdamW"}.items():
        module, _, name = path.rpartition(".")
        defaults[field] = getattr(importlib.import_module(module), name)
    return Fields(sections, defaults)


def refuse_nulls(arguments: Sequence[str]) -> None:
    """Refuse null in a config file where a setting has no such value, which the parser passes on.

    Raises:
        UserError: names the setting.
    """
    training_fields().refuse_nulls(settings(arguments))


def refuse_mappings(arguments: Sequence[str], values: Mapping[str, object]) -> None:
    """Refuse a mapping meant as a component that the parser rejected and kept as a string or mapping.

    Raises:
        UserError: there is such a mapping; the message names the wrong setting.
    """
    if any(_refused(value) for value in values.values()):
        fault = training_fields().fault(settings(arguments))
        if fault is not None:
            raise fault


def _refused(value: object) -> bool:
    """True if the value contains a ``class_path`` mapping that the parser did not accept as a component."""
    if isinstance(value, str):
        return value.lstrip().startswith(("{", "["))
    if isinstance(value, dict):
        return "class_path" in value or any(_refused(item) for item in value.values())
    if isinstance(value, list):
        return any(isinstance(item, Namespace) and _refused(item) for item in value)
    if isinstance(value, Namespace):
        return any(_refused(item) for item in vars(value).values() if not isinstance(item, str))
    return False


def explain(error: BaseException, arguments: Sequence[str] = (), fields: Fields | None = None) -> UserError:
    """Return a message for a jsonargparse error: the field, the problem and the nearest valid name.

    Args:
        error: error of the parser.
        arguments: arguments of the command, without its name.
        fields: valid settings of the config; None takes those of ``gspo fit``.
    """
    mistake = mistake_of_plugin(error)
    if mistake is not None:  # raised by the constructor of a plug-in
        return mistake
    text = str(error)
    key = re.search(r'[Kk]ey "([^"]+)"', text)
    field = key.group(1) if key else ""
    wrapped = _wrapped_error(error, field)
    if wrapped is not None:
        return wrapped
    fields = training_fields() if fields is None else fields
    try:
        fault = fields.fault(settings(arguments))
    except UserError as error_of_arguments:
        fault = error_of_arguments
    explanations = (
        fault,
        _overlay(text, arguments),
        _missing(text, fields),
        _unknown_key(text),
        _unknown_class(text, field),
    )
    for explanation in explanations:
        if explanation is not None:
            return explanation
    name = _refused_class(text)
    if not field and name:
        return UserError(fields.place_of(name) or "arguments", f"{name}: {_informative(text)}")
    return UserError(field or "arguments", _informative(text))


def _overlay(text: str, arguments: Sequence[str]) -> UserError | None:
    """Return the error of an overlay without the config that it changes, if the data to train on are missing."""
    if re.search(r"arguments are required: (\w+\.)?data\.train\b", text) is None:
        return None
    files = config_files(arguments)
    if not files:
        return UserError("data.train", "is missing: there is nothing to train on", fix="give --config FILE")
    names = [file.stem for file in files]
    several = len(names) > 1
    words = " ".join(f"--config {name}" for name in names)
    base = ", where BASE is smollm2" if names == ["smollm2_lora"] else ""
    return UserError(
        "data.train",
        f"is missing: {' and '.join(names)} {'set' if several else 'sets'} none, and only "
        f"{'change' if several else 'changes'} another config",
        fix=f"name that config first: --config BASE {words}{base}",
    )


def _missing(text: str, fields: Fields) -> UserError | None:
    """Return the error of a class with a missing package or a missing required parameter, if any."""
    class_path = re.search(r"class_path='([\w.]+)'", text)
    name = class_path.group(1).rpartition(".")[2] if class_path else ""
    place = fields.place_of(name) or "arguments"
    needed = re.search(r"Requirement '([\w.-]+)[^']*' not met|No module named '([\w-]+)", text)
    if needed is not None:
        package = needed.group(1) or needed.group(2)
        problem = f"{name or 'it'} needs the package {package}, which is not installed"
        return UserError(place, problem, fix=f"pip install {package}")
    required = re.search(r"the following arguments are required: ([\w.]+)", text)
    if required is not None:
        field = f"{place}.{required.group(1)}" if place != "arguments" else required.group(1)
        return UserError(field, f"is missing: {name or 'the class'} cannot run without it")
    return None


def _wrapped_error(error: BaseException | None, field: str) -> UserError | None:
    """Return the :class:`UserError` of a constructor that the parser wrapped, if any."""
    while error is not None:
        if isinstance(error, UserError):
            return error if error.field.startswith(("model.", "data.")) else _placed(error, field)
        error = error.__cause__ or error.__context__
    return None


def _placed(error: UserError, field: str) -> UserError:
    return UserError(f"{field}.{error.field}" if field else error.field, error.problem, fix=error.fix)


_INSIDES = (
    (re.compile(r"[.;]? ?(Got|Given) value: .*"), ""),
    (re.compile(r"(Namespace|NestedArg)\(.*\)"), "..."),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
    (re.compile(r"typing\."), ""),
)
"""Patterns of parser internals and repeated values, with their replacements."""
_NOISE = ("usage", "Problem with given class_path", "Does not validate", "Subtypes:", "Errors:", "Given value type")
_HOPELESS = ("Expected a NoneType", "Expected a path but", "Not a valid subclass of NoneType")
_FORMS = ("Expected a", "Not a valid subclass", "Subclass types expect", "a class path", "a dict with")
"""Beginnings of parser lines about a value of the wrong form; any other line is a constructor's reason."""


def _informative(text: str) -> str:
    """Join the informative lines of a parser error; only a constructor's reason if there is one."""
    lines = [re.sub(r'^[Pp]arser key "[^"]+":?\s*', "", line.strip(" -")) for line in text.splitlines()]
    for pattern, replacement in _INSIDES:
        lines = [pattern.sub(replacement, line) for line in lines]
    informative = [line for line in lines if line and not line.startswith(_NOISE)]
    reasons = [line for line in informative if not line.startswith(_FORMS)]
    hopeful = [line for line in informative if not line.startswith(_HOPELESS)]
    return "; ".join((reasons or hopeful or informative)[:4])


def _refused_class(text: str) -> str:
    """Return the class whose constructor raised (in a list the first not instantiated one), or an empty string."""
    given = re.search(r"Given value: .*?class_path='([\w.]+)'", text)
    return given.group(1).rpartition(".")[2] if given else ""


def _unknown_key(text: str) -> UserError | None:
    patterns = (
        r"[Kk]ey '([^']+)' is not expected",
        r"does not accept option '([^']+)'",
        r"[Oo]ption '([^']+)' is not accepted",
        r"[Uu]nrecognized arguments: (\S+)",
        r"ambiguous option: (\S+)",
        r'[Nn]o action for key "([^"]+)"',
    )
    for pattern in patterns:
        match = re.search(pattern, text)
        if match is not None:
            break
    else:
        return None
    key = match.group(1).lstrip("-").partition("=")[0]
    translated = foreign(key)
    if translated is not None:
        problem, fix = translation(*translated)
        return UserError(key, problem, fix=fix)
    return UserError(key, f"is not a setting; {_near_setting(key)}")


def _near_setting(key: str) -> str:
    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule

    section, *rest = key.split(".")
    owner = {"model": GSPOModule, "data": PromptDataModule}.get(section)
    if owner is None:
        return did_you_mean(section, ["seed_everything", "plugins", "trainer", "model", "data", "ckpt_path"])
    names = [name for name in inspect.signature(owner).parameters if name not in ("seed", "plugins")]
    return did_you_mean(rest[0], names) if len(rest) == 1 else "see --print_config"


_KIND_OF = {
    "objective": "objectives", "old_policy": "old_policies", "train": "prompts", "val": "prompts", "test": "prompts",
    "predict": "prompts", "demonstrations": "prompts", "rewards": "rewards", "rollouts": "rollouts",
    "advantages": "advantages", "environment": "environments", "tools": "tools",
    "agent": "agents",
}  # fmt: skip
"""Last part of a field -> kind of component it takes."""


def _unknown_class(text: str, field: str) -> UserError | None:
    innermost = re.search(r"dot import path string: '?([\w.]+)", text)
    if innermost is not None:  # a nested component: the keys before it are its path
        field = ".".join(re.findall(r'[Pp]arser key "([^"]+)"', text[: innermost.start()])) or field
        text = innermost[0]
    parts = [part for part in field.split(".") if part in _KIND_OF]
    names = re.findall(
        r"(?:dot import path string:|class_path '|Import path '?|Unexpected class_path) ?'?([\w.]+)", text
    )
    if not parts or not names:
        return None
    components = registry.components(_KIND_OF[parts[-1]])
    name = str(names[0])
    if name.split(".")[-1] in components:
        return None
    return UserError(field, f"{name!r} is not registered; {did_you_mean(name, components)}")
