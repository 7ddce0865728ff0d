"""What a cold start learns of a demonstration: token ids and masks, spelt out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import Demonstration
from gspo_lightning.data.prompts.taught import PromptFormat, Taught, teach
from gspo_lightning.policy.tiny import character_tokenizer

SPECIALS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
END_OUTSIDE = MARKED.replace("{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}",
                             "{{ m.content }}{% endgeneration %}{{ '<|im_end|>\n' }}")  # fmt: skip
LINE_INSIDE = MARKED.replace("'<|im_end|>' }}{% endgeneration %}{{ '\n' }}", "'<|im_end|>\n' }}{% endgeneration %}")
QWEN3 = (  # as Qwen3's: the thinking of turns before the last question is left out, and the last turn always has some
    "{% for m in messages %}{% if m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% else %}{{ '<|im_start|>assistant\n' }}{% set said = m.content.split('</think>')[-1] %}"
    "{% if loop.last %}{{ '<think>' + (m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content "
    "else '') + '</think>' + said }}{% else %}{{ said }}{% endif %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if thinking is defined and not thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
MARKED_QWEN3 = QWEN3.replace("{% set said", "{% generation %}{% set said").replace(
    "{{ said }}{% endif %}", "{{ said }}{% endif %}{% endgeneration %}"
)
PLAIN = PromptFormat()


def chat(template: str | None = CHATML, end: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """A token a character, and one for each special token."""
    letters = "abcdefghijklmnopqrstuvwxyz \n?+=.0123456789"
    vocabulary = {c: i for i, c in enumerate([*SPECIALS, "<|other|>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([*SPECIALS, "<|other|>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, chat_template=template)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def rows(
    pairs: Sequence[Demonstration],
    tokenizer: Any,
    prompt_format: PromptFormat = PLAIN,
    ends: Sequence[int] | None = None,
) -> list[Taught]:
    known = [tokenizer.eos_token_id] if ends is None else ends
    return teach(pairs, tokenizer, known, prompt_format, lambda number: f"demos.jsonl:{number + 1}", "field")


def shown(row: Taught, tokenizer: Any) -> tuple[str, str]:
    """The prompt, and the response with brackets around what is taught."""
    text, inside = "", False
    for token, taught in zip(row.response, row.mask, strict=True):
        text += ("[" if taught and not inside else "]" if inside and not taught else "") + tokenizer.decode([token])
        inside = taught
    return tokenizer.decode(row.prompt), text + ("]" if inside else "")


def test_texts_without_a_template_are_learnt_to_the_letter() -> None:
    tokenizer = character_tokenizer()
    (row,) = rows([("7+5:", "#2")], tokenizer)
    assert row.prompt == tokenizer("7+5:")["input_ids"]
    assert row.response == [*tokenizer("#2", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert row.mask == [True] * 3


def test_a_text_is_asked_through_the_template_and_its_completion_stays_as_it_is() -> None:
    tokenizer = chat(QWEN3)
    (row,) = rows([("1+1?", "<think>a</think>2")], tokenizer, PromptFormat("be brief", {"thinking": True}))
    asked = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert shown(row, tokenizer) == (asked, "[<think>a</think>2<|im_end|>]")
    (row,) = rows([([user("1+1?")], "2")], tokenizer, PromptFormat(chat_template_kwargs={"thinking": False}))
    asked = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think></think>"
    assert shown(row, tokenizer) == (asked, "[2<|im_end|>]")


@pytest.mark.parametrize("template", [CHATML, MARKED, END_OUTSIDE, LINE_INSIDE])
def test_every_turn_of_the_assistant_is_learnt_with_its_end_and_nothing_else(template: str) -> None:
    tokenizer = chat(template)
    talk = [user("1+1?"), said("2"), user("2+2?"), said("4 or so")]
    (row,) = rows([(talk[:1], talk[1:])], tokenizer)
    assert shown(row, tokenizer) == (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n",
        "[2<|im_end|>]\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n[4 or so<|im_end|>]",
    )
    assert [*row.prompt, *row.response, tokenizer("\n")["input_ids"][0]] == tokenizer.apply_chat_template(
        talk, return_dict=True
    )["input_ids"]


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_turns_of_the_prompt_are_not_learnt(template: str) -> None:
    tokenizer = chat(template)
    talk = [user("1+1?"), said("2"), user("2+2?"), said("4")]
    (row,) = rows([(talk[:3], talk[3:])], tokenizer, PromptFormat("be brief"))
    prompt, response = shown(row, tokenizer)
    assert prompt.startswith("<|im_start|>system\nbe brief<|im_end|>\n")
    assert prompt.endswith("2<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n")
    assert response == "[4<|im_end|>]"


def test_a_template_that_writes_an_empty_thought_teaches_it_where_the_policy_must_write_it() -> None:
    tokenizer = chat(QWEN3)
    talk: Demonstration = ([user("1+1?")], [said("2")])
    (row,) = rows([talk], tokenizer)
    assert shown(row, tokenizer)[1] == "[<think></think>2<|im_end|>]"
    (row,) = rows([talk], tokenizer, PromptFormat(chat_template_kwargs={"thinking": False}))
    assert shown(row, tokenizer)[1] == "[2<|im_end|>]"


@pytest.mark.parametrize("template", [QWEN3, MARKED_QWEN3], ids=["plain", "marked"])
def test_a_template_that_drops_earlier_thinking_is_refused_unless_one_turn_is_taught(template: str) -> None:
    tokenizer = chat(template)
    talk = [user("1+1?"), said("<think>a</think>2"), user("2+2?"), said("<think>b</think>4")]
    with pytest.raises(UserError, match=r"demos.jsonl:1: the chat template writes message 2, .* differently") as caught:
        rows([(talk[:1], talk[1:])], tokenizer)
    assert "a record of its own" in str(caught.value.fix)
    (row,) = rows([(talk[:3], talk[3:])], tokenizer)
    prompt, response = shown(row, tokenizer)
    assert "<think>" not in prompt
    assert response == "[<think>b</think>4<|im_end|>]"


def test_a_template_that_ends_a_turn_with_another_token_says_which_setting_knows_it() -> None:
    tokenizer = chat(CHATML, end="<|other|>")
    talk: Demonstration = ([user("1+1?")], [said("2")])
    with pytest.raises(
        UserError, match=r"demos.jsonl:1: .* does not end a turn .*\(<\|other\|>\)\n  fix: .*stop_token_ids"
    ):
        rows([talk], tokenizer)
    (row,) = rows([talk], tokenizer, PromptFormat(stop_token_ids=(1,)))
    assert shown(row, tokenizer)[1] == "[2<|im_end|>]"


REFUSED: dict[str, tuple[str | None, Demonstration, str]] = {
    "no template": (None, ([user("1+1?")], [said("2")]), "messages need a chat template"),
    "a role": (
        "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endfor %}" + CHATML,
        ([user("1+1?")], [said("2"), {"role": "tool", "content": "3"}, said("4")]),
        "refuses the conversation: no tools",
    ),
    "an end in the middle": (CHATML, ([user("1+1?")], [said("2<|im_end|>3")]), "an end token in its middle"),
    "marks that skip a turn": (
        MARKED.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last"),
        ([user("1?")], [said("2"), user("3?"), said("4")]),
        "marks 1 of 2 turns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_demonstration_without_exact_tokens_is_refused_with_its_place(
    case: tuple[str | None, Demonstration, str],
) -> None:
    template, pair, words = case
    with pytest.raises(UserError) as caught:
        rows([pair], chat(template))
    assert caught.value.field == "demos.jsonl:1"
    assert words in str(caught.value)


def test_too_long_demonstrations_are_counted_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = character_tokenizer()
    pairs = [("1:", "#1"), ("1+1+1:", "#3"), ("2:", "2=2;#2")]
    kept = rows(pairs, tokenizer, PromptFormat(max_prompt_tokens=5, max_response_tokens=6))
    assert [tokenizer.decode(row.prompt) for row in kept] == ["1:"]
    assert "dropped 2 of 3 demonstrations" in caplog.text
    assert "data.max_prompt_tokens = 5 or data.max_response_tokens = 6" in caplog.text
    with pytest.raises(UserError, match="no demonstration is left: all 3 are longer"):
        rows(pairs, tokenizer, PromptFormat(max_prompt_tokens=1))


def test_characters_that_the_tokenizer_does_not_know_are_refused_with_their_place() -> None:
    with pytest.raises(UserError, match=r"demos.jsonl:2: the tokenizer does not know every character"):
        rows([("1:", "#1"), ("1:", "Z")], character_tokenizer())
