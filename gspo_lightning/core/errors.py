"""Error model of the package, in one place.

* The **user's** mistake raises :class:`UserError`: one message that names the field, the value, the rule and the
  fix. The command line prints it without a traceback and exits with code 2.
* The **model's** mistake (a wrong, slow or crashing answer) is data: reward 0, counted by kind.
* The **infrastructure's** mistake (a worker lost, a server down) is retried, then the sample is *missing* (masked,
  never a silent 0). Above a set rate :class:`InfrastructureError` stops the run.

An exception is a plug-in's mistake if its innermost relevant frame is in a plug-in (:func:`mistake_of_plugin`). A
plug-in is code that is neither this package nor an installed one: what the user wrote. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import math
import site
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType, TracebackType
from typing import Any, TypeGuard

_OWN = str(Path(__file__).parents[1]) + "/"
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple(f"{path}/" for path in {*map(sysconfig.get_path, _LIBRARIES), *site.getsitepackages()})
_PACKAGES = ("site-packages", "dist-packages")
"""Folders of installed packages anywhere: PYTHONPATH may name those of another environment."""
_CHARACTERS = 300
_NEAR = 0.7
"""Least likeness (0 to 1) of a name that a message suggests."""
_NEAR_BEGINNING = 0.5
"""The same of a name with the same first characters."""
_BEGINNING = 4
"""Number of those characters."""


class GSPOError(Exception):
    """Base of all exceptions that this package raises on purpose."""


class UserError(GSPOError, ValueError):
    """Something the user wrote cannot work.

    Args:
        field: the YAML field, flag, file or argument that is wrong, as the user wrote it.
        problem: what was found there and which rule it breaks.
        fix: what to write instead.

    >>> print(UserError("data.group_size", "is 1, but a group needs a spread", fix="use at least 2"))
    data.group_size: is 1, but a group needs a spread
      fix: use at least 2
    """

    def __init__(self, field: str, problem: str, *, fix: str | None = None) -> None:
        self.field = field
        self.problem = problem
        self.fix = fix
        super().__init__(f"{field}: {problem}" + (f"\n  fix: {fix}" if fix else ""))

    def __reduce__(self) -> tuple[object, ...]:  # keyword-only ``fix`` would be lost by the default reduction
        return (_rebuild_user_error, (self.field, self.problem, self.fix))


class InfrastructureError(GSPOError, RuntimeError):
    """Something the run depends on (worker, server, sandbox) failed more often than the run tolerates."""


class NonFiniteError(GSPOError, ArithmeticError):
    """A NaN or infinity would have reached the optimizer."""


class CollapseError(GSPOError, RuntimeError):
    """The run shows a sign of collapse, and was told to stop there."""


def _rebuild_user_error(field: str, problem: str, fix: str | None) -> UserError:
    return UserError(field, problem, fix=fix)


@functools.cache
def say_renamed(old: str, new: str) -> None:
    """Log once that a name that plug-ins use was renamed."""
    text = "%s is called %s now; the old name still works, but will be removed"
    logging.getLogger(__name__).warning(text, old, new)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type if the message is empty.

    >>> first_line(ValueError("too long\\nby 3")), first_line(MemoryError())
    ('too long', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def counted(reasons: Iterable[str], shown: int = 3) -> str:
    """Return reasons with their counts, the most frequent first; the rest is only counted.

    >>> counted(["no answer", "a tie", "no answer"]), counted(["a", "b", "c"], shown=1)
    ('2 x no answer, 1 x a tie', '1 x a, 2 x something else')
    """
    counts = Counter(reason or "no reason given" for reason in reasons)
    named = counts.most_common(shown)
    rest = sum(counts.values()) - sum(count for _, count in named)
    words = [f"{count} x {reason}" for reason, count in named]
    return ", ".join([*words, f"{rest} x something else"] if rest else words)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a half sentence with the nearest known name and all known names.

    >>> did_you_mean("GPSO", ["GRPO", "GSPO"])
    'did you mean GSPO? known: GRPO, GSPO'
    """
    names = sorted(known)
    suggestion = nearest(name, names)
    hint = f"did you mean {suggestion}? " if suggestion is not None else ""
    return f"{hint}known: {', '.join(names) if names else '(none)'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one may mean; None if none is near.

    A file ending that both names have says nothing. Names of the same beginning may differ more.

    >>> nearest("traim.jsonl", ["train.jsonl"]), nearest("nothere.jsonl", ["scores.jsonl"])
    ('train.jsonl', None)
    """
    typed = name.lower()
    likeness = {other: _likeness(typed, other.lower()) for other in known}
    best = max(likeness, key=lambda other: (likeness[other], other), default=None)
    return best if best is not None and likeness[best] >= _NEAR else None


def _likeness(typed: str, name: str) -> float:
    ending = PurePath(typed).suffix
    if ending and name.endswith(ending):
        typed = typed.removesuffix(ending)
        name = name.removesuffix(ending)
    likeness = difflib.SequenceMatcher(None, name, typed).ratio()
    same_beginning = len(typed) >= _BEGINNING and typed[:_BEGINNING] == name[:_BEGINNING]
    return max(likeness, _NEAR) if same_beginning and likeness >= _NEAR_BEGINNING else likeness


def is_finite(value: object) -> TypeGuard[float]:
    """True for a finite number that is not a bool; an integer beyond the range of floats is not finite.

    >>> is_finite(1), is_finite(True), is_finite("1"), is_finite(math.inf), is_finite(10**400)
    (True, False, False, False, False)
    """
    try:
        return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]  # TypeError says so
    except (TypeError, OverflowError):
        return False


def check_number(
    name: str, value: float, *, low: float, high: float = math.inf, open_low: bool = False, open_high: bool = False
) -> None:
    """Refuse a value that is not a finite number in the interval from ``low`` to ``high``.

    Raises:
        UserError: naming the argument, its value and the rule.
    """
    ok = isinstance(value, (int, float)) and is_finite(value)
    ok = ok and (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
    if not ok:
        upper = "" if high == math.inf else f" and {'<' if open_high else '<='} {high:g}"
        raise UserError(name, f"is {value!r}, but must be a finite number {'>' if open_low else '>='} {low:g}{upper}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of ``choices``."""
    if value not in choices:
        raise UserError(name, f"is {value!r}, but must be one of {', '.join(choices)}")


class PluginError(UserError):
    """A plug-in raised, or returned something invalid; the command line shows it on every rank.

    ``frames`` is the traceback of the plug-in's own frames, if it raised.
    """

    frames: str = ""

    @classmethod
    def returned(cls, where: str, what: str, rule: str) -> PluginError:
        """Build an error for the value that a method at ``where`` returned, and the rule that it breaks."""
        return cls(where, f"returned {what}", fix=f"correct {where}; expected: {rule}")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a plug-in: ``file:line, in Class.method``; ``expected`` is the purpose of the method, if known."""

    file: str
    line: int
    name: str
    expected: str = ""

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}, in {self.name}"


def is_own(cls: type[Any]) -> bool:
    """True if a class is part of this package."""
    return cls.__module__.partition(".")[0] == "gspo_lightning"


def defined(owner: object, method: str) -> str:
    """Return how a message names a method of a component: with file and line if a plug-in defines it.

    >>> from gspo_lightning.rewards import ExactMatch
    >>> defined(ExactMatch(), "score")
    'ExactMatch.score'
    """
    return located(getattr(type(owner), method), f"{type(owner).__name__}.{method}")


def located(function: Any, name: str) -> str:
    """Return the name of a function, with file and line if a plug-in defines it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not _is_plugin(code.co_filename):
        return name
    return f"{_short(code.co_filename)}:{code.co_firstlineno}, in {name}"


def place_of(error: BaseException) -> Place | None:
    """Return the place in a plug-in where an exception arose; None if it arose in this package, or in no plug-in."""
    for cause in chain(error):
        place = _innermost(cause)
        if place is not None:
            return place
    return None


def mistake_of_plugin(error: BaseException) -> PluginError | None:
    """Return an exception as a mistake of a plug-in; None if it is not one.

    The first and the last line give file, line, class and method, and the expectation.
    """
    for cause in chain(error):
        place = _innermost(cause)
        if place is None:
            continue
        kind = type(cause).__name__
        message = first_line(cause)[:_CHARACTERS]
        summary = kind if message == kind else f"{kind}: {message}"
        expected = f"; expected: {place.expected}" if place.expected else ""
        mistake = PluginError(f"{place}", f"raised {summary}", fix=f"correct {place}{expected}")
        frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_plugin(frame.filename)]
        mistake.frames = "".join(traceback.format_list(frames)) + summary
        return mistake
    return None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, the oldest last."""
    visited: set[int] = set()  # causes may form a circle
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _innermost(error: BaseException) -> Place | None:
    """Return the place in a plug-in, if all later frames are in installed packages: the plug-in called them."""
    frames = list(frames_of(error.__traceback__))
    for i in range(len(frames) - 1, -1, -1):
        frame, line = frames[i]
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            return None
        if _is_plugin(file):
            plugin_frames = [outer for outer, _ in frames[: i + 1] if _is_plugin(outer.f_code.co_filename)]
            contracts = map(_contract, plugin_frames)
            expected = next(filter(None, contracts), "")
            return Place(file, line, frame.f_code.co_qualname.replace("<locals>.", ""), expected)
    return None


def frames_of(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield frames and line numbers of a traceback, the innermost last."""
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _contract(frame: FrameType) -> str:
    """Return ``Base.method: first sentence`` of the method that a frame overrides in this package or in Lightning."""
    name = frame.f_code.co_name
    owner = frame.f_locals.get("self")
    if owner is None or name == "__init__":
        return ""
    for cls in reversed(type(owner).__mro__):  # the base class explains the method
        if cls.__module__.partition(".")[0] in ("gspo_lightning", "lightning") and name in cls.__dict__:
            sentence = (inspect.getdoc(cls.__dict__[name]) or "").partition("\n")[0]
            return f"{cls.__name__}.{name}: {sentence}" if sentence else f"{cls.__name__}.{name}"
    return ""


def _is_plugin(file: str) -> bool:
    installed = any(f"/{folder}/" in file for folder in _PACKAGES)
    if installed or file.startswith((_OWN, "<", *_INSTALLED)):
        return False
    return not any(file.startswith(f"{path}/") and _has_packages(path) for path in sys.path if path)


@functools.cache
def _has_packages(folder: str) -> bool:
    """True if packages were installed there, as by ``pip install --target``."""
    return any(Path(folder).glob("*.dist-info/METADATA"))


def _short(file: str) -> str:
    """Shorten a path below the working directory to a relative one."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
