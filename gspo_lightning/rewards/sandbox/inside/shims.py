"""Stand-ins for the parts of pytest that data sets' tests use, and for its test collection."""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from typing import Any


class _Raises:
    """``with pytest.raises(ValueError, match="..."):``."""

    def __init__(self, kinds: Any, match: str | None = None) -> None:
        self.kinds = kinds
        self.match = match
        self.value = None

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> bool:
        assert kind is not None, "nothing was raised"
        if not issubclass(kind, self.kinds):
            return False
        if self.match is not None:
            import re

            assert re.search(self.match, str(error)), f"{error!s} does not match {self.match}"
        self.value = error
        return True


class _Approx:
    """``== pytest.approx(0.3)``: within 1e-6 of the value, or 1e-12."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:  # noqa: A002
        self.expected = expected
        self.relative = rel
        self.absolute = abs

    def __eq__(self, found: object) -> bool:
        return self._close(found, self.expected)

    __hash__ = None  # type: ignore[assignment]

    def _close(self, found: Any, expected: Any) -> bool:
        if isinstance(expected, list | tuple):
            same = isinstance(found, list | tuple) and len(found) == len(expected)
            return same and all(self._close(f, e) for f, e in zip(found, expected, strict=True))
        if isinstance(expected, dict):
            same = isinstance(found, dict) and set(found) == set(expected)
            return same and all(self._close(found[key], expected[key]) for key in expected)
        if not isinstance(found, int | float) or not isinstance(expected, int | float):
            return bool(type(found) is type(expected) and found == expected)
        relative = 1e-6 if self.relative is None and self.absolute is None else self.relative or 0.0
        absolute = 1e-12 if self.absolute is None else self.absolute
        return found == expected or abs(found - expected) <= max(relative * abs(expected), absolute)


def _raises(kinds: Any, *call: Any, match: str | None = None, **named: Any) -> _Raises:
    manager = _Raises(kinds, match)
    if call:
        with manager:
            call[0](*call[1:], **named)
    return manager


class _Mark:
    """``pytest.mark``: ``parametrize(names, values)`` runs a test for each value; other marks are ignored."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: lambda function: function

    def parametrize(self, names: Any, values: Any, **_: Any) -> Any:
        words = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

        def decorate(function: Any) -> Any:
            def run(**given: Any) -> None:
                for value in values:
                    row = value if len(words) > 1 else (value,)
                    function(**given, **dict(zip(words, row, strict=True)))

            return run

        return decorate


class _Printed:
    """``capsys``: the text printed since the last read."""

    def __init__(self) -> None:
        import io

        sys.stdout = self.kept = io.StringIO()

    def readouterr(self) -> Any:
        text = self.kept.getvalue()
        self.kept.seek(0)
        self.kept.truncate()
        return types.SimpleNamespace(out=text, err="")


def _fixture(*function: Any, **_: Any) -> Any:
    """``@pytest.fixture``, with or without brackets."""
    if not function:
        return _fixture
    function[0].is_fixture = True
    return function[0]


def install() -> None:
    """Install a stand-in module ``pytest`` for scripts that import one."""
    module = types.ModuleType("pytest")
    module.__dict__.update(raises=_raises, approx=_Approx, mark=_Mark(), fixture=_fixture)
    sys.modules["pytest"] = module


def strict_allclose() -> None:
    """Make ``numpy.allclose`` compare values of one shape only; it takes an empty list as close to everything."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or getattr(numpy.allclose, "strict", False):
        return
    loose = numpy.allclose

    def allclose(a: Any, b: Any, *more: Any, **named: Any) -> bool:
        return bool(numpy.shape(a) == numpy.shape(b) and loose(a, b, *more, **named))

    numpy.allclose = allclose
    numpy.allclose.strict = True


def run_collected(namespace: dict[str, Any]) -> None:
    """Run ``test_...`` functions and unittest or pytest classes that a script defines but does not run itself.

    Raises:
        Exception: raised by the first test that fails.
    """
    for name, value in list(namespace.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            _run(value, namespace)
        elif isinstance(value, type) and value.__module__ == "tests":
            _run_class(value)


class _UnknownFixtureError(Exception):
    """A test wants, itself or through a fixture, what is not there."""


def _run(test: types.FunctionType, namespace: dict[str, Any]) -> None:
    """Call a test with the fixtures that it names; skip one that wants anything else."""
    try:
        _call(test, namespace, {}, [])
    except _UnknownFixtureError:
        return


def _call(function: types.FunctionType, namespace: dict[str, Any], values: dict[str, Any], suspended: list[Any]) -> Any:
    """Call a test or a fixture with the fixtures that it names; a test and its fixtures share the value of each.

    Args:
        function: the test, or a fixture.
        namespace: of the script.
        values: of the test's fixtures so far.
        suspended: the test's fixtures that have yielded; one that nothing holds is closed, which cleans up too early.

    Raises:
        _UnknownFixtureError: it wants anything else.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    for name in names:
        fixture = namespace.get(name)
        if name in values:
            continue
        if name == "capsys":
            values[name] = _Printed()
        elif getattr(fixture, "is_fixture", False):
            value = _call(namespace[name], namespace, values, suspended)
            if isinstance(value, types.GeneratorType):
                suspended.append(value)
                value = next(value)
            values[name] = value
        else:
            raise _UnknownFixtureError(name)
    result = function(**{name: values[name] for name in names})
    if isinstance(result, types.CoroutineType):
        import asyncio

        return asyncio.run(result)
    return result


def _run_class(cls: type) -> None:
    unittest = sys.modules.get("unittest")
    if unittest is not None and issubclass(cls, unittest.TestCase):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(cls)
        result = unittest.TestResult()
        suite.run(result)
        for _, text in [*result.errors, *result.failures]:
            raise AssertionError(text.strip().rpartition("\n")[2])
    elif cls.__name__.startswith("Test"):
        for name in [n for n in dir(cls) if n.startswith("test")]:
            getattr(cls(), name)()
