"""Arguments of a tool from the signature of its ``call``: a JSON schema for the policy, checked values for the tool."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gspo_lightning.core.errors import UserError


def takes_text(call: Callable[..., Any]) -> bool:
    """True if a method takes one text, as tools did before they took several arguments.

    >>> def search(self, query: str) -> str: ...
    >>> def add(self, a: int, b: int) -> str: ...
    >>> takes_text(search), takes_text(add)
    (True, False)
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]
    if len(parameters) != 1 or parameters[0].kind not in (
        parameters[0].POSITIONAL_ONLY,
        parameters[0].POSITIONAL_OR_KEYWORD,
    ):
        return False
    return parameters[0].annotation in (inspect.Parameter.empty, str, "str")


class Arguments:
    """Arguments of a method with annotated parameters.

    Args:
        call: the method of a class, with ``self`` first. Its docstring's ``Args`` describe the parameters.
        where: the name of the tool, for messages.

    Raises:
        UserError: a parameter has no name of its own (``*args``), or an annotation that has no JSON schema.
    """

    def __init__(self, call: Callable[..., Any], where: str) -> None:
        from pydantic import ConfigDict, Field, create_model
        from pydantic.errors import PydanticUserError

        fix = "annotate each argument with a type that JSON has (str, int, list[str], Literal), or override parameters"
        try:
            hints = typing.get_type_hints(call, include_extras=True)
            described = _descriptions(call)
            fields: dict[str, Any] = {}
            for name, parameter in list(inspect.signature(call).parameters.items())[1:]:
                if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                    raise UserError(
                        f"{where}.call", f"has the argument {parameter}, which has no name in JSON", fix=fix
                    )
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                fields[name] = (hints.get(name, Any), Field(default, description=described.get(name)))
            self._model = create_model(where, __config__=ConfigDict(extra="forbid"), **fields)
            self.schema: dict[str, Any] = _untitled(self._model.model_json_schema())
        except (PydanticUserError, NameError, TypeError) as error:
            raise UserError(f"{where}.call", f"has arguments without a JSON schema: {error}", fix=fix) from error

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for the method, defaults included.

        Raises:
            ValueError: they do not fit; the message says which.
        """
        from pydantic import ValidationError

        try:
            values = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            problems = []
            for details in error.errors()[:3]:
                place = ".".join(map(str, details["loc"])) or "arguments"
                problems.append(f"{place}: {details['msg']}")
            raise ValueError("; ".join(problems)) from error
        return {name: getattr(values, name) for name in type(values).model_fields}


def _descriptions(call: Callable[..., Any]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    return parse_google_format_docstring(inspect.getdoc(call) or "")[1] or {}


def _untitled(schema: Any, of_names: bool = False) -> Any:
    """Return a schema without the titles that repeat its names."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    untitled = {}
    for key, value in schema.items():
        if of_names:  # keys are the names of arguments, one of which may be called title
            untitled[key] = _untitled(value)
        elif key != "title":
            untitled[key] = _untitled(value, of_names=key in ("properties", "$defs"))
    return untitled
