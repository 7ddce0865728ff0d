"""Tools: exact arithmetic without eval, programs in the sandbox only, wrong calls as answers."""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.rewards.math.calculator import calculate
from gspo_lightning.rollouts.environments import Calculator, GuessNumber, PythonTool, Tool, ToolUse
from gspo_lightning.rollouts.environments.tools import ToolError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("-7", -7), ("--7", 7), ("2+3*4", 14), ("(2+3)*4", 20), ("2-3-4", -5), ("24/4/3", 2), ("-2*-3", 6),
        (" 1 + 1 ", 2), ("1.5*2", 3), (".5+.25", Fraction(3, 4)), ("1/3", Fraction(1, 3)), ("2*(3-(4-5))", 8),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: Fraction | int) -> None:
    assert calculate(text) == value


@given(st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=12,
))  # fmt: skip
def test_arithmetic_agrees_with_pythons(text: str) -> None:
    if len(text) <= 200:
        assert calculate(text) == eval(text, {"__builtins__": {}})  # digits, + - * and parentheses of our own making


@pytest.mark.parametrize(
    "text",
    [
        "", "1+", "(1", "1)", "1 2", "1//2", "2**3", "9**9**9**9", "1/0", "1/(2-2)", "x", "1e9", "__import__('os')",
        "1;2", "1,2", "0x10", "1_0", "٣+1", "(" * 150, "-" * 199, "1" * 201, "\x00",
    ],
)  # fmt: skip
def test_everything_else_is_a_wrong_call(text: str) -> None:
    with pytest.raises(ToolError):
        Calculator().call(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1/3", "0.3333333333"), ("2/3", "0.6666666667"), ("200000/3", "66666.66667"), ("1/3000", "0.0003333333333"),
        ("-1/8", "-0.125"), ("1/2+1/2", "1"), ("99999999999*10", "999999999990"), ("1/16", "0.0625"),
        ("99999999999/2", "50000000000"),
    ],
)  # fmt: skip
def test_results_are_exact_or_rounded_to_ten_digits(text: str, shown: str) -> None:
    assert Calculator().call(text) == shown


def test_the_longest_product_is_computed() -> None:
    assert len(Calculator().call("*".join(["99"] * 67))) == 134


@pytest.mark.thorough
def test_python_prints_and_says_why_it_failed() -> None:
    tool = PythonTool(timeout_s=2.0, max_characters=40)
    assert tool.call("Here:\n```python\nprint(6 * 7)\n```") == "42"
    assert tool.call("print(6 * 7)") == "42"
    assert "ZeroDivisionError" in tool.call("print('a'); 1 / 0")
    assert tool.call("print('a'); 1 / 0").startswith("a\n[runtime_error]")
    assert tool.call("print(10 ** 99)") == "1" + "0" * 39 + "\n[60 more characters]"
    assert "syntax_error" in tool.call("print(")
    assert "timeout" in tool.call("while True: pass")
    assert "runtime_error" in tool.call("open('/etc/hostname').read()")


def answer(box: ToolUse, completion: str) -> tuple[list[str], bool]:
    messages, reward, done = asyncio.run(box.step(completion))
    assert reward == 0.0
    assert all(m["role"] == "tool" for m in messages)
    return [m["content"] for m in messages], done


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_tagged_calls_are_answered_in_order() -> None:
    box = ToolUse({"calculator": Calculator(), "exact": Calculator(digits=2)})
    text = f"I ask: {call('calculator', expression='1/3')} and {call('exact', expression='1/3')}"
    assert answer(box, text) == (["0.3333333333", "0.33"], False)
    assert answer(box, "The answer is 3.") == ([], True)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>", "<tool_call>2+2</tool_call>", "<tool_call>{}</tool_call>", "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "shell", "arguments": {"x": "ls"}}</tool_call>', '<tool_call>"calculator"</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>', "<tool_call>" + "[" * 100_000,
        '<tool_call>{"name": ["calculator"], "arguments": {"expression": "1"}}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": "1+1"}</tool_call>',
        '<tool_call>{"name": "calculator", "arguments": {"a": "1", "b": "2"}}</tool_call>',
    ],
)  # fmt: skip
def test_a_wrong_call_gets_an_error_and_the_conversation_goes_on(text: str) -> None:
    (result,), done = answer(ToolUse({"calculator": Calculator()}), text)
    assert result.startswith("error: not a call of calculator")
    assert not done


def test_calls_beyond_the_limit_are_not_made() -> None:
    made: list[str] = []

    class Noting(Calculator):
        def call(self, text: str) -> str:
            made.append(text)
            return text

    box = ToolUse({"note": Noting()}, max_calls=2)
    text = "".join(call("note", expression=str(i)) for i in range(5))
    assert answer(box, text) == (["0", "1"], False)
    assert sorted(made) == ["0", "1"]


def test_the_line_style_calls_the_only_tool() -> None:
    box = ToolUse({"calculator": Calculator()}, style="line", wrong_call="?")
    assert answer(box, "?2*(3+4)") == (["=14;"], False)
    assert answer(box, "?2*") == (["=?;"], False)
    assert answer(box, "#14") == ([], True)


def test_instructions_name_the_tools_where_calls_are_tagged() -> None:
    opening = asyncio.run(ToolUse({"sum": Calculator()}).reset(Prompt(0, "1+1?", (1,))))
    assert [m["role"] for m in opening] == ["system", "user"]
    assert "sum(expression)" in opening[0]["content"]
    assert opening[1]["content"] == "1+1?"
    assert asyncio.run(ToolUse({"sum": Calculator()}, instructions="").reset(Prompt(0, "1+1?", (1,)))) == []


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: ToolUse({}), "is empty"),
        (lambda: ToolUse({"a": Calculator(), "b": Calculator()}, style="line"), "has 2 tools"),
        (lambda: ToolUse({"a": Calculator()}, max_calls=0), "max_calls"),
        (lambda: Calculator(digits=0), "digits"),
        (lambda: PythonTool(timeout_s=0), "timeout_s"),
        (lambda: GuessNumber(guesses=0), "guesses"),
        (lambda: GuessNumber(cost=-1), "cost"),
    ],
)
def test_settings_out_of_range_are_refused(build: object, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build()  # type: ignore[operator]


def play(game: GuessNumber, *guesses: str) -> list[tuple[str, float, bool]]:
    asyncio.run(game.reset(Prompt(0, "30-49?", (1,), {"answer": "41"})))
    steps = [asyncio.run(game.step(g)) for g in guesses]
    return [(messages[0]["content"] if messages else "", reward, done) for messages, reward, done in steps]


def test_guessing_says_smaller_larger_or_that_it_was_no_number() -> None:
    assert play(GuessNumber(), "39", "44", "41") == [(">", 0.0, False), ("<", 0.0, False), ("", 1.0, True)]
    assert play(GuessNumber(), "The answer is 39.", "Not 39 but 41?", "9" * 5000, "It is 41.") == [
        (">", 0.0, False), ("?", 0.0, False), ("?", 0.0, False), ("", 1.0, True)
    ]  # fmt: skip
    assert play(GuessNumber(2), "x", "٤١") == [("?", 0.0, False), ("?", 0.0, True)]
    assert play(GuessNumber(2, cost=0.25), "", "42") == [("?", -0.25, False), ("<", -0.25, True)]


def test_a_record_without_a_number_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="must be a whole number"):
        asyncio.run(GuessNumber().reset(Prompt(0, "?", (1,), {"answer": "many"})))


class Search(Tool):
    """Several arguments, one of them a list."""

    async def call(self, query: str, sites: list[str] | None = None, count: Annotated[int, "few"] = 3) -> Any:
        """Searches pages.

        Args:
            query: the words.
            sites: names of sites.
        """
        return {"query": query, "sites": sites, "count": count}


class Older(Tool):
    """A plug-in from before tools had several arguments."""

    def call(self, text: str) -> str:
        return text.upper()


class AtRunTime(Tool):
    """Arguments that a server tells."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": {"type": "integer"}}}

    def call(self, **arguments: Any) -> str:
        return f"{arguments}"


def test_the_schema_of_a_tool_comes_from_its_annotations_and_docstring() -> None:
    shown = Search().schema("search")["function"]
    assert (shown["name"], shown["description"]) == ("search", "Searches pages.")
    assert shown["parameters"]["required"] == ["query"]
    assert shown["parameters"]["properties"] == {
        "query": {"description": "the words.", "type": "string"},
        "sites": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None,
                  "description": "names of sites."},
        "count": {"default": 3, "type": "integer"},
    }  # fmt: skip
    assert Older().schema("up")["function"]["parameters"] == {
        "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
    }  # fmt: skip
    assert AtRunTime().schema("x")["function"]["parameters"]["properties"] == {"x": {"type": "integer"}}


def test_a_tool_gets_its_arguments_by_name() -> None:
    found = asyncio.run(Search().answer({"query": "a", "count": "4"}))
    assert json.loads(found) == {"query": "a", "sites": None, "count": 4}
    assert asyncio.run(AtRunTime().answer({"x": 1})) == "{'x': 1}"
    for wrong in ({}, {"query": 3}, {"query": "a", "more": 1}, {"query": "a", "sites": "b"}):
        with pytest.raises(ToolError):
            asyncio.run(Search().answer(wrong))


def test_json_that_a_policy_reads_has_its_own_letters() -> None:
    class Größe(Tool):
        def call(self, größe: int, farbe: str) -> dict[str, Any]:
            return {"größe": größe, "farbe": [farbe]}

    box = ToolUse({"größe": Größe(), "up": Older()})
    assert '<tool_call>{"name": "größe", "arguments": {"größe": "...", "farbe": "..."}}</tool_call>' in box.instructions
    assert answer(box, call("größe", größe=1, farbe="東")) == (['{"größe": 1, "farbe": ["東"]}'], False)
    assert answer(box, call("up", input={"straße": "é"})) == (['{"STRASSE": "É"}'], False)
    assert "größe: Input should be" in answer(box, call("größe", größe="x", farbe="東"))[0][0]


@pytest.mark.parametrize("arguments", [{"input": "ab"}, {"whatever": "ab"}])
def test_older_tools_get_one_text_whatever_the_policy_calls_it(arguments: dict[str, str]) -> None:
    assert asyncio.run(Older().answer(arguments)) == "AB"
    box = ToolUse({"up": Older()})
    assert answer(box, call("up", **arguments)) == (["AB"], False)
    assert answer(box, call("up", input=[1, 2])) == (["[1, 2]"], False)
    assert "- up(input): " in box.instructions


def test_tagged_calls_may_have_several_arguments() -> None:
    box = ToolUse({"search": Search()})
    assert "- search(query, sites, count): Searches pages." in box.instructions
    assert json.loads(answer(box, call("search", query="a", count=1))[0][0])["count"] == 1
    assert "query: Field required" in answer(box, call("search", count=1))[0][0]


def test_arguments_without_a_schema_are_the_users_mistake() -> None:
    class Many(Tool):
        def call(self, *numbers: int) -> str:
            return ""

    class Odd(Tool):
        def call(self, a: object, b: asyncio.Event) -> str:
            return ""

    for tool in (Many(), Odd()):
        with pytest.raises(UserError, match="annotate each argument with a type that JSON has"):
            ToolUse({"tool": tool})
    with pytest.raises(UserError, match="style: line writes one text"):
        ToolUse({"search": Search()}, style="line")
