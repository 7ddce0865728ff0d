"""Plain functions as rewards, with TRL's signature."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.registry import see_folder
from gspo_lightning.rewards.chat import completion_messages, prompt_messages, wants_messages
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.signature import Plan, make_plan
from gspo_lightning.rewards.types import Sample, Score, TrainerState

_LISTS = ("prompts", "completions", "completion_ids")
_OF_TRAINER = ("trainer_state", "log_extra", "log_metric")
_BUILT_IN = (*_LISTS, *_OF_TRAINER)
_NAMED = ("unfinished_thought",)
"""Lists for functions that name them; ``**kwargs`` is what TRL would give."""
_PLACES = ("worker", "trainer")
_KINDS = ("auto", "text", "messages")
_CHARACTERS = 500
_NONE = "the reward returned None"


class FunctionReward(Reward):
    """``f(prompts, completions, completion_ids, **columns) -> list[float | None]``, arguments by name.

    Each argument is a list with one element per completion; columns of the records keep their names. The function
    sees parts of a rollout batch when it runs in workers, and all completions of this process in the trainer.
    ``trainer_state`` (:class:`TrainerState`), ``log_extra`` and ``log_metric`` are given to functions that name them or
    take ``**kwargs``, as TRL does; ``unfinished_thought`` (a list, see :class:`Sample`) to those that name it.

    Args:
        function: dotted path (``plugins.rules.polite``), or the function itself; may be ``async``.
        where: ``worker``, or ``trainer`` if it needs the device or all completions at once.
        arguments: arguments of a factory, whose path ``function`` then is
            (``trl.rewards.get_repetition_penalty_reward``); ``{}`` calls it without arguments. None: the path is that
            of the function itself.
        completions: form of prompts and completions: ``text``, ``messages`` (lists of ``{role, content}``, which TRL
            calls conversational), or ``auto``: messages if the function's annotations say so.

    Raises:
        UserError: the path leads nowhere (with the cause), or to something that cannot be called this way.

    >>> FunctionReward("operator.length_hint")
    Traceback (most recent call last):
    gspo_lightning.core.errors.UserError: FunctionReward.function: operator.length_hint: takes obj by position, but ...
    """

    def __init__(
        self,
        function: str | Callable[..., Any],
        where: Literal["worker", "trainer"] = "worker",
        arguments: dict[str, Any] | None = None,
        completions: Literal["auto", "text", "messages"] = "auto",
    ) -> None:
        for field, value, choices in (("where", where, _PLACES), ("completions", completions, _KINDS)):
            if value not in choices:
                rule = f"it must be {' or '.join(map(repr, choices))}"
                raise UserError(f"FunctionReward.{field}", f"is {value!r}; {rule}")
        self.where = where
        self.completions = completions
        self.path = function
        self.arguments_of_factory = arguments
        self._resolve()

    def _resolve(self) -> None:
        """Import the function, or call its factory, and plan its arguments."""
        if isinstance(self.path, str):
            self.name = self.path
            function = _at(self.path)
        else:
            self.name = getattr(self.path, "__qualname__", repr(self.path))
            function = self.path
        field = f"FunctionReward.function: {self.name}"
        if not callable(function):
            raise UserError("FunctionReward.function", f"{self.path!r} cannot be called", fix="name a function")
        if self.arguments_of_factory is not None:
            function = _made(function, self.arguments_of_factory, self.name)
        elif _returns_function(function):
            raise UserError(
                field,
                "makes a reward function and is none itself",
                fix=f"give its arguments: init_args: {{function: {self.name}, arguments: {{...}}}}",
            )
        self.function: Callable[..., Any] = function
        self._function_plan: Plan = make_plan(function, field, method=False, built_in=(*_BUILT_IN, *_NAMED))
        self._messages = self.completions == "messages" or (self.completions == "auto" and wants_messages(function))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the function made by a factory, which may be a closure; the worker makes it again."""
        state = dict(self.__dict__)
        if self.arguments_of_factory is not None:
            del state["function"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = dict(state)
        if "function" not in state:
            self._resolve()

    def score_batch(self, samples: Sequence[Sample]) -> Any:
        """Call the function once; the runner checks the returned values."""
        plan = self._function_plan
        logged = Logged(len(samples))
        values: dict[str, Any] = {
            "prompts": [prompt_messages(s) if self._messages else s.prompt for s in samples],
            "completions": [completion_messages(s) if self._messages else s.completion for s in samples],
            "completion_ids": [list(s.completion_ids) for s in samples],
            "unfinished_thought": [s.unfinished_thought for s in samples],
            "trainer_state": TrainerState.of(samples[0]) if samples else TrainerState(),
            "log_extra": logged.extra,
            "log_metric": logged.metric,
        }
        built_in = {*plan.built_in, *_BUILT_IN} if plan.takes_columns else plan.built_in
        arguments = {name: values[name] for name in built_in}
        columns = {name for s in samples for name in s.columns}
        if not plan.takes_columns:
            columns &= {*plan.required, *plan.optional}
        for name in sorted(columns - arguments.keys()):
            arguments[name] = [s.columns.get(name) for s in samples]
        return logged.attached(self._call(arguments))

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        try:
            values = self.function(**arguments)
            return asyncio.run(values) if inspect.iscoroutine(values) else values
        except TypeError as error:
            if self._messages or "string indices must be integers" not in str(error):
                raise
            raise UserError(
                "FunctionReward.completions",
                f"{self.name} reads completions as lists of messages, but gets text",
                fix=f"write init_args: {{function: {self.name}, completions: messages}}",
            ) from error

    def reads_images(self) -> bool:
        """True if the function has a parameter ``images``."""
        return "images" in (*self._function_plan.required, *self._function_plan.optional)

    def required_columns(self) -> tuple[str, ...]:
        """Return the parameters of the function that are columns and have no default."""
        return self._function_plan.required


def _made(factory: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """Call a factory with its arguments and return the reward function.

    Raises:
        UserError: the factory does not take the arguments, refuses them, or returns something that cannot be called.
    """
    field = "FunctionReward.arguments"
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        parameters = ", ".join(inspect.signature(factory).parameters)
        raise UserError(field, f"{name}: {error}", fix=f"it takes {parameters}") from None
    try:
        function = factory(**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(field, f"{name} refuses them: {error}") from error
    if not callable(function):
        problem = f"{name} makes no function of them but a {type(function).__name__}"
        raise UserError(field, problem, fix="leave arguments out if it is the reward function itself")
    return function


def _returns_function(function: Callable[..., Any]) -> bool:
    """True if a function's annotation says that it returns another function."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
    return name.startswith(("Callable", "typing.Callable", "collections.abc.Callable"))


def _at(path: str) -> Callable[..., Any]:
    """Import the object at a dotted path."""
    see_folder(Path.cwd())
    names = path.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise UserError("FunctionReward.function", f"{path!r} is not a dotted path", fix="write module.function")
    for end in range(len(names) - 1, 0, -1):
        module = ".".join(names[:end])
        try:
            target: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
                continue  # the path may go through a class
            raise _broken(path, module, error) from error
        except Exception as error:
            raise _broken(path, module, error) from error
        for name in names[end:]:
            if not hasattr(target, name):
                public = [n for n in vars(target) if not n.startswith("_")] if hasattr(target, "__dict__") else []
                hint = did_you_mean(name, public)
                raise UserError("FunctionReward.function", f"{module} has no {name!r}; {hint}")
            target = getattr(target, name)
        return target
    raise UserError("FunctionReward.function", f"{path!r}: there is no module {names[0]!r}")


def _broken(path: str, module: str, error: Exception) -> UserError:
    problem = f"{path!r}: importing {module} raised {type(error).__name__}: {error}"
    return UserError("FunctionReward.function", problem)


class Logged:
    """The values logged during one call of a reward function.

    >>> logged = Logged(2)
    >>> logged.metric("share_parsed", 0.5)
    >>> logged.extra("parsed", ["2", None])
    >>> [(score.reward, score.logged, score.extra) for score in logged.attached([1.0, None])]
    [(1.0, {'share_parsed': 0.5}, {'parsed': '2'}), (None, {'share_parsed': 0.5}, {'parsed': None})]
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._metrics: dict[str, list[float]] = {}
        self._extra: dict[str, list[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        """Log a number about this call (``log_metric``); its mean is logged as ``reward/logged/<name>``.

        Raises:
            UserError: the value is not a finite number.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"log_metric({name!r})", f"got {value!r}", fix="log a finite number")
        self._metrics.setdefault(str(name), []).append(number)

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """Log one value per completion (``log_extra``), written beside its reward in recorded rollouts.

        Raises:
            UserError: not one value for each completion.
        """
        items = list(values)
        if len(items) != self._samples:
            problem = f"got {len(items)} values for {self._samples} completions"
            raise UserError(f"log_extra({column!r})", problem, fix="log one value for each completion")
        self._extra[str(column)] = [_plain(value) for value in items]

    def attached(self, values: Any) -> Any:
        """Attach the logged values to rewards; unchanged if nothing was logged or the length does not fit."""
        if not (self._metrics or self._extra) or not hasattr(values, "__len__") or len(values) != self._samples:
            return values
        means: Mapping[str, float] = {name: sum(numbers) / len(numbers) for name, numbers in self._metrics.items()}
        scores = []
        for row, value in enumerate(values):
            if isinstance(value, Score):
                score = value
            else:
                score = Score(value, detail="" if value is not None else _NONE)
            extra = {name: column[row] for name, column in self._extra.items()}
            scores.append(replace(score, logged=means, extra=extra))
        return scores


def _plain(value: Any) -> Any:
    """Return a value that fits in JSON and is short, else its text."""
    try:
        if len(json.dumps(value, allow_nan=False)) <= _CHARACTERS:
            return value
    except (TypeError, ValueError):
        pass
    return str(value)[:_CHARACTERS]
