"""Reading arguments before the parser exists, and turning the parser's complaints into one clear message."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning import registry
from gspo_lightning.commands.fit.fields import Fields, Setting, shown
from gspo_lightning.errors import UserError, did_you_mean, mistake_of_plugin
from gspo_lightning.policy.hub import check_reachable

__all__ = ["DEFAULT_CLASSES", "check_files", "config_files", "explain", "plugin_paths", "refuse_mappings"]

DEFAULT_CLASSES = {
    "model.old_policy": "gspo_lightning.old_policy.CachedLogProbs",
    "data.advantages": "gspo_lightning.advantages.GroupNormalised",
    "data.rollouts": "gspo_lightning.rollouts.GroupedSampler",
}
"""Field -> the component that is there unless a config says otherwise."""

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]*\w(?<!\.jsonl)(?<!\.json)(?<!\.csv)(?<!\.tsv)(?<!\.parquet)(?<!\.gz)")
_OLD_HUB_ID = re.compile(r"(?!tiny-)[\w.-]+")  # gpt2

TRANSLATIONS = {
    "num_generations": "data.group_size",
    "n_samples_per_prompt": "data.group_size",
    "rollout.n": "data.group_size",
    "epsilon": "model.objective.init_args.clip_low (and clip_high)",
    "epsilon_low": "model.objective.init_args.clip_low",
    "epsilon_high": "model.objective.init_args.clip_high",
    "clip_ratio_low": "model.objective.init_args.clip_low",
    "clip_ratio_high": "model.objective.init_args.clip_high",
    "clip_ratio": "model.objective.init_args.clip_low (and clip_high)",
    "left_clip_range": "model.objective.init_args.clip_low",
    "right_clip_range": "model.objective.init_args.clip_high",
    "ppo_mini_batch_size": "data.minibatches_per_rollout (a number of mini-batches, not a size)",
    "train_batch_size": "data.prompts_per_rollout",
    "rollout_batch_size": "data.prompts_per_rollout",
    "per_device_train_batch_size": "data.max_tokens_per_micro_batch (a token budget; results do not depend on it)",
    "gradient_accumulation_steps": "data.max_tokens_per_micro_batch (a token budget; results do not depend on it)",
    "beta": "model.objective.init_args.kl_coef",
    "kl_coef": "model.objective.init_args.kl_coef",
    "steps_per_generation": "data.minibatches_per_rollout",
    "num_iterations": "data.epochs_per_rollout",
    "ppo_epochs": "data.epochs_per_rollout",
    "loss_type": "model.objective",
    "loss_agg_mode": "model.objective (each brings its own aggregation)",
    "top_p": "data.evaluation.top_p (training samples must follow the policy itself)",
    "top_k": "data.evaluation.top_k (training samples must follow the policy itself)",
    "adv_estimator": "data.advantages",
    "scale_rewards": "data.advantages",
    "importance_sampling_level": "model.objective (GSPO is the sequence level, GRPO the token level)",
    "max_completion_length": "data.max_response_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_new_tokens": "data.max_response_tokens",
    "reward_funcs": "data.rewards",
    "learning_rate": "model.optimizer.init_args.lr",
    "max_grad_norm": "trainer.gradient_clip_val",
    "model_name_or_path": "model.name_or_path",
    "total_epochs": "trainer.max_epochs",
}
"""Words of other frameworks -> what the same thing is called here."""


def _values(arguments: Sequence[str], *flags: str) -> Iterator[str]:
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in flags:
            if equals:
                yield value
            elif i + 1 < len(arguments):
                yield arguments[i + 1]


def config_files(arguments: Sequence[str]) -> list[Path]:
    """The files given by ``--config``, in order.

    Raises:
        UserError: one does not exist or is not YAML.
    """
    return [Path(value) for value in _values(arguments, "--config", "-c")]


def plugin_paths(arguments: Sequence[str]) -> list[str]:
    """Plug-ins named by ``plugins:`` in any config file and by ``--plugins``, without repetitions.

    Raises:
        UserError: a config file is missing or malformed.
    """
    found: list[str] = []
    for file in config_files(arguments):
        content = _read_yaml(file)
        listed = content.get("plugins") or []
        found += [listed] if isinstance(listed, str) else [str(p) for p in listed]
    for value in _values(arguments, "--plugins", "--plugins+"):
        listed = _as_list(value)
        found += [str(p) for p in listed] if isinstance(listed, list) else [value]
    return list(dict.fromkeys(found))


def check_files(arguments: Sequence[str]) -> None:
    """Configs, plug-ins and the checkpoint that a command names are there; asked before anything slow is imported.

    Raises:
        UserError: one is not.
    """
    for plugin in plugin_paths(arguments):
        registry.check_plugin(plugin)
    for value in _values(arguments, "--ckpt_path"):
        if value not in ("last", "null", "") and "://" not in value and not Path(value).exists():
            raise UserError("ckpt_path", f"{value!r} does not exist", fix="give a path, or last")
    for field, name in _hub_ids(arguments).items():
        check_reachable(field, name, "model" if field.startswith("model.") else "dataset")


def _hub_ids(arguments: Sequence[str]) -> dict[str, str]:
    """Field -> what can only be an id of the hub: ``owner/name``, or a model of one word that is not built in."""
    fields = {("model", "name_or_path"), *(("data", word) for word in ("train", "val", "test", "predict"))}
    found: dict[str, Any] = {}
    try:
        given = settings(arguments)
    except UserError:  # the parser says so, too, and comes next
        return {}
    for setting in given:
        for room, word in fields:
            inside = setting.value.get(room) if not setting.keys else None
            if setting.keys == (room, word):
                found[f"{room}.{word}"] = setting.value
            elif isinstance(inside, dict) and word in inside:
                found[f"{room}.{word}"] = inside[word]
    names = {field: value.partition(":")[0] for field, value in found.items() if isinstance(value, str)}
    return {
        field: name
        for field, name in names.items()
        if (_HUB_ID.fullmatch(name) or (field.startswith("model.") and _OLD_HUB_ID.fullmatch(name)))
        and not Path(name).exists()
    }


def _as_list(value: str) -> Any:
    """A YAML list where it is written as one (``[a.py, b.py]``), else the text itself."""
    try:
        return yaml.safe_load(value) if value.startswith("[") else value
    except yaml.YAMLError as error:
        raise UserError("--plugins", f"{value!r} is no list", fix="write [a.py, b.py], or one path") from error


def _read_yaml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        near = did_you_mean(file.name, (p.name for p in file.parent.glob("*.yaml"))) if file.parent.is_dir() else ""
        raise UserError("--config", f"{str(file)!r} does not exist" + (f"; {near}" if near else ""))
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or "is not text"
        raise UserError(f"{file}{line}", f"is not YAML: {problem}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(str(file), f"holds a {type(content).__name__}; a config is a mapping such as 'data: ...'")
    return content


def settings(arguments: Sequence[str]) -> list[Setting]:
    """Every file and flag of a training command, in order; ``arguments`` are those after its name.

    Raises:
        UserError: a word that belongs to no flag, or a flag without a value.
    """
    found: list[Setting] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("-"):
            raise UserError("arguments", f"{shown(flag)} belongs to no flag", fix="write --section.name value")
        if flag in ("-h", "--help") or flag.startswith("--print_config"):
            continue
        if not equals:
            if not rest or (rest[0].startswith("--") and rest[0] != "--"):
                raise UserError(flag.lstrip("-"), "has no value", fix=f"write {flag}=<value>")
            value = rest.pop(0)
        if flag in ("-c", "--config"):
            found.append(Setting((), _read_yaml(Path(value)), flag=False))
        else:
            found.append(Setting(tuple(flag.lstrip("-").split(".")), value))
    return found


def _fields() -> Fields:
    from lightning.pytorch import Trainer

    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule

    values = {"seed_everything": bool | int, "plugins": list[str] | str, "allow_changed_config": bool}
    own = {"ckpt_path": str | None, "weights_only": Any, "return_predictions": Any, "verbose": Any}
    rooms = {**values, **own, "trainer": Trainer, "model": GSPOModule, "data": PromptDataModule}
    defaults = {
        field: getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
        for field, path in {**DEFAULT_CLASSES, "model.optimizer": "torch.optim.AdamW"}.items()
    }
    return Fields(rooms, TRANSLATIONS, defaults)


def refuse_mappings(arguments: Sequence[str], values: Mapping[str, object]) -> None:
    """A mapping that was meant as a prompt set and was no good has become a text: say what is wrong with it.

    Args:
        arguments: as for :func:`explain`.
        values: field -> what the parser made of it.

    Raises:
        UserError: such a text.
    """
    if any(isinstance(value, str) and value.lstrip().startswith(("{", "[")) for value in values.values()):
        fault = _fields().fault(settings(arguments))
        if fault is not None:
            raise fault


def explain(error: BaseException, arguments: Sequence[str] = ()) -> UserError:
    """One message from jsonargparse's complaint: the field, what was wrong, and the nearest right word."""
    if (mistake := mistake_of_plugin(error)) is not None:  # raised by the constructor of a plug-in
        return mistake
    text = str(error)
    found = re.search(r'[Kk]ey "([^"]+)"', text)
    field = found.group(1) if found else ""
    if (own := _own_error(error, field)) is not None:
        return own
    fields = _fields()
    try:
        fault = fields.fault(settings(arguments))
    except UserError as mistake:
        fault = mistake
    for explanation in (fault, _missing(text, fields), _unknown_key(text), _unknown_class(text, field)):
        if explanation is not None:
            return explanation
    return UserError(field or "arguments", _informative(text))


def _missing(text: str, fields: Fields) -> UserError | None:
    """A package that a class needs, or a parameter that it cannot do without."""
    made = re.search(r"class_path='([\w.]+)'", text)
    name = made.group(1).rpartition(".")[2] if made else ""
    place = fields.place_of(name) or "arguments"
    needed = re.search(r"Requirement '([\w.-]+)[^']*' not met|No module named '([\w-]+)", text)
    if needed is not None:
        package = needed.group(1) or needed.group(2)
        what = f"{name or 'it'} needs the package {package}, which is not installed"
        return UserError(place, what, fix=f"pip install {package}")
    required = re.search(r"the following arguments are required: ([\w.]+)", text)
    if required is not None:
        field = f"{place}.{required.group(1)}" if place != "arguments" else required.group(1)
        return UserError(field, f"is missing: {name or 'the class'} cannot do without it")
    return None


def _own_error(error: BaseException | None, field: str) -> UserError | None:
    """An error of ours that the parser wrapped: a constructor refused its arguments."""
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
"""Words of the parser's own, and the values that it repeats."""
_NOISE = ("usage", "Problem with given class_path", "Does not validate", "Subtypes:", "Errors:", "Given value type")
_HOPELESS = ("Expected a <class 'NoneType'>", "Expected a path but", "Not a valid subclass of NoneType")


def _informative(text: str) -> str:
    """The lines of a complaint that say something, joined."""
    lines = [re.sub(r'^[Pp]arser key "[^"]+":?\s*', "", line.strip(" -")) for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith(_NOISE)]
    said = "; ".join(([line for line in wanted if not line.startswith(_HOPELESS)] or wanted)[:4])
    for pattern, instead in _INSIDES:
        said = pattern.sub(instead, said)
    return said


def _unknown_key(text: str) -> UserError | None:
    patterns = (
        r"[Kk]ey '([^']+)' is not expected",
        r"does not accept option '([^']+)'",
        r"[Oo]ption '([^']+)' is not accepted",
        r"[Uu]nrecognized arguments: (\S+)",
        r"ambiguous option: (\S+)",
        r'[Nn]o action for key "([^"]+)"',
    )
    match = next((m for p in patterns if (m := re.search(p, text))), None)
    if match is None:
        return None
    key = match.group(1).lstrip("-").partition("=")[0]
    last = key.split(".")[-1]
    for theirs, ours in TRANSLATIONS.items():
        if key == theirs or last == theirs or key.endswith("." + theirs):
            return UserError(key, "is a word of another framework", fix=f"this is called {ours} here")
    return UserError(key, f"is not a setting; {_near_setting(key)}")


def _near_setting(key: str) -> str:
    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule

    room, *rest = key.split(".")
    owner = {"model": GSPOModule, "data": PromptDataModule}.get(room)
    if owner is None:
        return did_you_mean(room, ["seed_everything", "plugins", "trainer", "model", "data", "ckpt_path"])
    known = [p for p in inspect.signature(owner).parameters if p not in ("seed", "plugins")]
    return did_you_mean(rest[0], known) if len(rest) == 1 else "see --print_config"


_KIND_OF = {
    "objective": "objectives", "old_policy": "old_policies", "train": "prompts", "val": "prompts", "test": "prompts",
    "predict": "prompts", "demonstrations": "prompts", "rewards": "rewards", "rollouts": "rollouts",
    "advantages": "advantages", "environment": "environments", "tools": "tools",
}  # fmt: skip
"""Last word of a field -> the kind of component it takes."""


def _unknown_class(text: str, field: str) -> UserError | None:
    innermost = re.search(r"dot import path string: '?([\w.]+)", text)
    if innermost is not None:  # a component within a component: what stands before it is the way there
        field = ".".join(re.findall(r'[Pp]arser key "([^"]+)"', text[: innermost.start()])) or field
        text = innermost[0]
    words = [w for w in field.split(".") if w in _KIND_OF]
    names = re.findall(
        r"(?:dot import path string:|class_path '|Import path '?|Unexpected class_path) ?'?([\w.]+)", text
    )
    if not words or not names:
        return None
    known = registry.components(_KIND_OF[words[-1]])
    name = str(names[0])
    if name.split(".")[-1] in known:
        return None
    return UserError(field, f"{name!r} is not registered; {did_you_mean(name, known)}")
