"""Messages with tools in the templates of families: calls are read as they were written, and results follow exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.data.prompts.tool_calls import ToolCall, Turn, parse_turn
from tests.data.prompts.families import FAMILIES, Family, real_families

ALL = {**FAMILIES, **{f"real {name}": family for name, family in real_families().items()}}
TOOLS = [
    {"type": "function", "function": {
        "name": name, "description": "Computes.",
        "parameters": {"type": "object", "properties": {
            "a": {"type": "integer", "description": "one"}, "b": {"type": "integer", "description": "two"},
        }, "required": ["a", "b"]},
    }}
    for name in ("add", "mul")
]  # fmt: skip
ASKED = {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "3?"}]}
CALLS = [ToolCall("add", {"a": 2, "b": 3}), ToolCall("mul", {"a": 4, "b": 5})]
SENT = [
    {"id": f"call_{i:018d}", "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
    for i, c in enumerate(CALLS)
]
RESULTS: list[dict[str, Any]] = [
    {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": f"result{i}"}]}
    for i, call in enumerate(SENT)
]


def ends(family: Family, tokenizer: PreTrainedTokenizerFast) -> int:
    found: int = tokenizer.convert_tokens_to_ids(family.end_of_call or family.end)
    return found


@pytest.mark.parametrize("number", [1, 2], ids=["one call", "parallel calls"])
@pytest.mark.parametrize("name", list(ALL))
def test_opening_turn_and_results_add_up_to_what_the_template_writes(name: str, number: int) -> None:
    """The results arrive in the other order and without names: ids say which call they answer."""
    family = ALL[name]
    if number > family.calls:
        pytest.skip("the template takes one call a turn")
    tokenizer = family.tokenizer()
    dialogue, calls = Dialogue(tokenizer), SENT[:number]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    whole = tokenizer.decode(dialogue.opening([ASKED, said, *RESULTS[:number]], {"tools": TOOLS}))
    opening = tokenizer.decode(dialogue.opening([ASKED], {"tools": TOOLS}))
    end = ends(family, tokenizer)
    reply = tokenizer.decode(dialogue.reply(RESULTS[:number][::-1], end, TOOLS, calls))
    assert "result0" in reply
    assert whole.startswith(opening)
    assert whole.endswith(reply)
    turn = whole[len(opening) : len(whole) - len(reply)]
    assert turn.endswith(tokenizer.decode([end]))
    found = parse_turn(tokenizer, turn, TOOLS)
    assert [(c.name, c.arguments) for c in found.calls] == [(c.name, c.arguments) for c in CALLS[:number]]
    assert (found.content, found.malformed) == ("", 0)


@pytest.mark.parametrize("name", list(ALL))
def test_a_turn_that_was_cut_gets_the_end_that_its_template_writes(name: str) -> None:
    family = ALL[name]
    tokenizer = family.tokenizer()
    dialogue, end = Dialogue(tokenizer), ends(family, tokenizer)
    cut, whole = (dialogue.reply(RESULTS[:1], last, TOOLS, SENT[:1]) for last in (7, end))
    assert cut == [end, *whole]


@pytest.mark.parametrize("name", list(ALL))
def test_results_follow_a_turn_whose_calls_are_not_known(name: str) -> None:
    """An environment may know neither names nor ids."""
    family = ALL[name]
    tokenizer = family.tokenizer()
    reply = tokenizer.decode(
        Dialogue(tokenizer).reply([{"role": "tool", "content": "r0"}], ends(family, tokenizer), TOOLS[:1])
    )
    assert "r0" in reply
    assert "a-turn" not in reply


@pytest.mark.parametrize("name", list(ALL))
def test_a_user_may_speak_after_a_turn(name: str) -> None:
    """The last turn of a conversation may end with another token than those before it: not both follow."""
    tokenizer = ALL[name].tokenizer()
    reply = Dialogue(tokenizer).reply([{"role": "user", "content": "and?"}], tokenizer.eos_token_id, TOOLS)
    text = tokenizer.decode(reply)
    assert "and?" in text
    assert not text.lstrip().startswith((str(tokenizer.eos_token), "<|end|>"))


def test_a_template_without_tools_is_answered_with_what_to_do() -> None:
    tokenizer = FAMILIES["qwen"].tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    dialogue = Dialogue(tokenizer)
    for ask in (lambda: dialogue.opening([ASKED], {"tools": TOOLS}), lambda: dialogue.reply(RESULTS, 1, TOOLS)):
        with pytest.raises(UserError, match="chat template without tools") as error:
            ask()
        assert "describe the tools in a system message" in str(error.value)


def test_a_template_that_drops_results_is_refused() -> None:
    tokenizer = FAMILIES["qwen"].tokenizer()
    tokenizer.chat_template = "{% for m in messages if m.role != 'tool' %}{{ m.role + m.content }}{% endfor %}"
    with pytest.raises(UserError, match="leaves out the results of tools"):
        Dialogue(tokenizer).reply([{"role": "tool", "content": "r0"}], 1)


def test_pictures_in_messages_are_refused() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(UserError, match="content has image_url; only text"):
        Dialogue(FAMILIES["qwen"].tokenizer()).opening([picture])


def test_demonstrations_have_calls_as_text() -> None:
    dialogue = Dialogue(FAMILIES["qwen"].tokenizer())
    with pytest.raises(UserError, match="write each call into the content"):
        dialogue.demonstration([{"role": "assistant", "content": "", "tool_calls": SENT}])


HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    ("family", "text", "turn"),
    [
        ("qwen", "<think>\nhm\n</think>\n\nSo: " + HERMES, Turn("So:", "hm", (CALLS[0],))),
        ("qwen", "hm\n</think>\n\n5<|im_end|>", Turn("5", "hm")),
        ("qwen", "no call<|im_end|>", Turn("no call")),
        ("qwen", "a" + HERMES + "b", Turn("ab", None, (CALLS[0],))),
        ("qwen", '<tool_call>{"name": "add", "arguments": {"a": "2", "b": 3}}', Turn("", None, (CALLS[0],))),
        ("qwen", "<tool_call>oops</tool_call>", Turn("<tool_call>oops</tool_call>", malformed=1)),
        ("qwen", HERMES + "<tool_call>{}</tool_call>", Turn(HERMES + "<tool_call>{}</tool_call>", malformed=1)),
        ("qwen", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
         Turn('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', malformed=1)),
        ("llama", '<|python_tag|>{"name": "add", "parameters": {"a": 2, "b": 3}}; {"name": "mul", "arguments": '
         '{"a": 4, "b": 5}}<|eot_id|>', Turn("", None, tuple(CALLS))),
        ("llama", 'It is {"answer": 5}.<|eot_id|>', Turn('It is {"answer": 5}.')),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2, "b": 3}, "id": "abcdefghi"}]</s>',
         Turn("", None, (ToolCall("add", {"a": 2, "b": 3}, "abcdefghi"),))),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 2, \"b\": 3}"
         "<｜tool▁call▁end｜>"
         "<｜tool▁call▁begin｜>mul<｜tool▁sep｜>{\"a\": 4, \"b\": 5}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         Turn("", None, tuple(CALLS))),
        ("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add "
         '<|constrain|>json<|message|>{"a": 2, "b": 3}<|call|>', Turn("", "hm", (CALLS[0],))),
        ("gpt-oss", "<|channel|>final<|message|>5<|return|>", Turn("5")),
        ("gpt-oss", "no channel", Turn("no channel")),
    ],
)  # fmt: skip
def test_turns_are_read_as_their_family_writes_them(family: str, text: str, turn: Turn) -> None:
    assert parse_turn(FAMILIES[family].tokenizer(), text, TOOLS) == turn


def test_mistrals_newer_format() -> None:
    tokenizer = FAMILIES["mistral"].tokenizer()
    tokenizer.chat_template = "[TOOL_CALLS][ARGS]"
    text = '[TOOL_CALLS]add[ARGS]{"a": 2, "b": 3}[TOOL_CALLS]mul[CALL_ID]x[ARGS]{"a": 4, "b": 5}</s>'
    assert parse_turn(tokenizer, text, TOOLS) == Turn("", None, tuple(CALLS))


LFM = """\
{%- if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' + m.content }}
  {%- for c in m.tool_calls or [] %}
    {{- '<|tool_call_start|>[' + c.function.name + '(' }}
    {%- for k, v in c.function.arguments.items() %}{{ k + '=' + v | tojson }}{% endfor %}{{ ')]<|tool_call_end|>' }}
  {%- endfor %}{{ '<|im_end|>\n' }}
{%- endfor %}"""
INVOKED = '<invoke name="{}">\n<parameter name="a">{}</parameter>\n<parameter name="b">{}</parameter>\n</invoke>'
FUNCTION = "<function={}>\n<parameter=a>{}</parameter>\n<parameter=b>{}</parameter>\n</function>"
KIMI = '<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{{"a": {}, "b": {}}}<|tool_call_end|>'
COHERE = '{{"tool_call_id": "{}", "tool_name": "{}", "parameters": {{"a": {}, "b": {}}}}}'


@pytest.mark.parametrize(
    ("mark", "text", "turn"),
    [
        ("<minimax:tool_call>", "<think>\nhm\n</think>\n\nSo:\n<minimax:tool_call>\n" + INVOKED.format("add", 2, 3)
         + "\n" + INVOKED.format("mul", 4, 5) + "\n</minimax:tool_call>", Turn("So:", "hm", tuple(CALLS))),
        ("<|tool_call_argument_begin|>", "So:<|tool_calls_section_begin|>" + KIMI.format("add", 0, 2, 3)
         + KIMI.format("mul", 1, 4, 5) + "<|tool_calls_section_end|>",
         Turn("So:", None, (ToolCall("add", {"a": 2, "b": 3}, "functions.add:0"),
                            ToolCall("mul", {"a": 4, "b": 5}, "functions.mul:1")))),
        ("<|START_ACTION|>", "<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[\n    "
         + COHERE.format(0, "add", 2, 3) + ",\n    " + COHERE.format(1, "mul", 4, 5) + "\n]<|END_ACTION|>",
         Turn("", "hm", (ToolCall("add", {"a": 2, "b": 3}, "0"), ToolCall("mul", {"a": 4, "b": 5}, "1")))),
        ("<|START_ACTION|>", "<|START_RESPONSE|>It is 5<|END_RESPONSE|>", Turn("It is 5")),
        ("<function=", "<seed:think>hm</seed:think>\n<seed:tool_call>\n" + FUNCTION.format("add", 2, 3)
         + "\n</seed:tool_call>", Turn("", "hm", (CALLS[0],))),
        ("<|tool_call|>", '<|tool_call|>[{"name": "add", "arguments": {"a": 2, "b": 3}}, '
         '{"name": "mul", "arguments": {"a": 4, "b": 5}}]', Turn("", None, tuple(CALLS))),
        ("<|tool_call|>", "<|tool_call|>oops", Turn("<|tool_call|>oops", malformed=1)),
    ],
    ids=["minimax", "kimi", "command-r calls", "command-r answer", "seed-oss", "granite", "granite cut"],
)  # fmt: skip
def test_formats_of_families_that_write_calls_in_their_own_way(mark: str, text: str, turn: Turn) -> None:
    """MiniMax-M2, Kimi-K2, Command R7B, Seed-OSS and Granite 3.3, as their templates write calls."""
    tokenizer = FAMILIES["qwen"].tokenizer()
    tokenizer.chat_template = mark
    assert parse_turn(tokenizer, text, TOOLS) == turn
    assert parse_turn(tokenizer, text + "<|im_end|>", TOOLS) == turn


@pytest.mark.parametrize("name", list(ALL))
def test_the_calls_of_every_known_template_are_read_back(name: str) -> None:
    assert Dialogue(ALL[name].tokenizer()).reads_calls


def test_calls_in_an_unknown_format_are_known_to_be_unread() -> None:
    """LFM2.5 writes Python: the policy would see its tools, and no call would ever be answered."""
    tokenizer = FAMILIES["qwen"].tokenizer()
    tokenizer.chat_template = LFM
    dialogue = Dialogue(tokenizer)
    assert dialogue.knows_tools
    assert not dialogue.reads_calls
    tokenizer.chat_template = LFM.replace("m.tool_calls or []", "[]")  # LFM2 leaves calls out
    assert not Dialogue(tokenizer).reads_calls
    tokenizer.chat_template += "{# <|tool_call|> #}"  # and so does Granite 3.3, whose format is known
    assert Dialogue(tokenizer).reads_calls


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
def test_a_special_token_that_ends_a_turn_is_no_text(tools: Any) -> None:
    """GLM ends a turn with the mark of who speaks next, which no tokenizer calls its end token."""
    tokenizer = FAMILIES["qwen"].tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|observation|>", "</think>"]})
    assert parse_turn(tokenizer, "<think>hm</think>5<|user|>", tools) == Turn("5", "hm")
    assert parse_turn(tokenizer, "<think>hm</think>", tools) == Turn("", "hm")  # a mark of the format stays one
    tokenizer.chat_template = "<arg_key>"
    argument = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
    text = "<tool_call>add\n" + argument.format("a", 2) + argument.format("b", 3)
    found = parse_turn(tokenizer, text + "</tool_call><|observation|>", tools)
    assert found.content == ("" if tools else text + "</tool_call>")
    assert found.calls == ((CALLS[0],) if tools else ())


def test_a_tokenizers_own_response_template_comes_first() -> None:
    tokenizer = FAMILIES["qwen"].tokenizer()
    call = {"open_pattern": r"CALL (?P<name>\w+)", "content": "json", "repeats": True,
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}}}  # fmt: skip
    tokenizer.response_template = {"start_anchor": "~", "fields": {"content": {"content": "text"}, "tool_calls": call}}
    assert parse_turn(tokenizer, 'Now CALL add {"a": 2, "b": 3}', TOOLS) == Turn("Now", None, (CALLS[0],))


def test_without_tools_no_call_is_looked_for() -> None:
    assert parse_turn(FAMILIES["qwen"].tokenizer(), HERMES).content == HERMES


def test_a_turn_full_of_marks_is_text_and_takes_no_time() -> None:
    """Reading 4,000 calls took 4 s of CPU time."""
    text = "<tool_call>" * 100_000
    assert parse_turn(FAMILIES["qwen"].tokenizer(), text, TOOLS) == Turn(text, malformed=1)
