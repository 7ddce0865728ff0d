"""Signatures from the fields of a dataclass: of a constructor with ``**kwargs``, and of a method with one object.

A setting is declared once, as a field with its default and explanation. jsonargparse follows the ``**kwargs`` to the
dataclass by itself; what reads signatures (messages, the JSON schema, ``help()``) sees them through this module.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741 (inputs)
R = TypeVar("R")
S = TypeVar("S")


class WholeSignature:
    """``__signature__`` of a class, with the fields of its settings in place of ``**kwargs``.

    Args:
        settings: a dataclass.
        computed: fields that the constructor computes: no settings.

    >>> @dataclasses.dataclass
    ... class Settings:
    ...     size: int = 4
    >>> class Model:
    ...     __signature__ = WholeSignature(Settings)
    ...     def __init__(self, name: str, **settings: object) -> None: ...
    >>> inspect.signature(Model)
    <Signature (name: 'str', *, size: 'int' = 4)>
    """

    def __init__(self, settings: type[Any], computed: Sequence[str] = ()) -> None:
        self.settings = settings
        self.computed = computed

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.owner = owner

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature:
        parameters, takes_settings = self._explicit(owner)
        names = {*self.computed, *parameters}
        for field in dataclasses.fields(self.settings) if takes_settings else ():
            if field.name not in names:
                parameters[field.name] = inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
                )
        return inspect.Signature(list(parameters.values()))

    def _explicit(self, owner: type[Any]) -> tuple[dict[str, inspect.Parameter], bool]:
        """Return the parameters that constructors name, and whether more keywords reach the settings.

        A subclass's ``**kwargs`` go to the next constructor, whose own parameters are then taken by keyword, too; those
        of the class with the settings go to these.
        """
        explicit: dict[str, inspect.Parameter] = {}
        inherited = False
        for cls in owner.__mro__:
            if "__init__" not in vars(cls):
                continue
            declared = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
            for parameter in declared:
                if parameter.kind is parameter.VAR_KEYWORD:
                    continue
                if inherited and parameter.kind is parameter.VAR_POSITIONAL:
                    continue
                if inherited:
                    parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
                explicit.setdefault(parameter.name, parameter)
            passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in declared)
            if cls is self.owner or not passes_on:
                return explicit, passes_on
            inherited = True
        return explicit, False


def settings_class(cls: type[Any]) -> type[Any] | None:
    """Return the dataclass whose fields a constructor takes as ``**kwargs``; None if there is none."""
    whole = inspect.getattr_static(cls, "__signature__", None)
    return whole.settings if isinstance(whole, WholeSignature) else None


def called_with(inputs: Callable[P, I]) -> Callable[[Callable[[S, I], R]], Callable[Concatenate[S, P], R]]:
    """Let a method that takes one typed object be called with the object's fields, by position and keyword.

    The object itself is taken, too: an override passes on what it got, ``super().generate(request)``.
    """

    def decorate(method: Callable[[S, I], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            whole = len(args) == 1 and not kwargs and isinstance(inputs, type) and isinstance(args[0], inputs)
            return method(self, args[0] if whole else inputs(*args, **kwargs))  # type: ignore[arg-type]

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [owner, *inspect.signature(inputs).parameters.values()]
        )
        return call

    return decorate


def accept_fields(cls: type[Any], name: str, inputs: type[Any]) -> None:
    """Decorate a subclass's ``name(self, inputs)``, its own or a mix-in's, by :func:`called_with`; no other method."""
    method = inspect.getattr_static(cls, name, None)
    if not inspect.isfunction(method):
        return
    arguments = list(inspect.signature(method).parameters.values())[1:]
    if len(arguments) == 1 and arguments[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        setattr(cls, name, called_with(inputs)(method))
