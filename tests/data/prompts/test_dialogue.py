"""Conversations as token ids: what a template would write around the policy's own tokens, which stay as they are."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.dialogue import Dialogue
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.policy.tiny import character_tokenizer

CHATML = (
    "{% for m in messages %}"
    "{% if m.role == 'narrator' %}{{ raise_exception('no narrators') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content.strip() + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if thinking is defined and not thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)


@pytest.fixture
def chat() -> PreTrainedTokenizerFast:
    """Characters, merges of two of them, and ChatML: a text can be tokenised in more than one way."""
    tokenizer = Tokenizer(models.BPE(
        {"<|end|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<think></think>": 3}
        | {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz \n?<>0123456789", start=4)} | {"ab": 60, "12": 61},
        [("a", "b"), ("1", "2")],
    ))  # fmt: skip
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|end|>", "<think></think>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def test_turns_add_up_to_what_the_template_writes(chat: PreTrainedTokenizerFast) -> None:
    """Whole conversation = opening + the policy's tokens + reply + the policy's tokens + reply."""
    dialogue = Dialogue(chat)
    opening = [{"role": "system", "content": "be brief"}, user("guess")]
    first, second = [*ids(chat, "12"), 2], [*ids(chat, "50"), 2]
    row = dialogue.opening(opening) + first
    row += dialogue.reply([user(">")], first[-1]) + second
    row += dialogue.reply([user("<"), {"role": "tool", "content": "t"}], second[-1])
    said = [*opening, {"role": "assistant", "content": "12"}, user(">")]
    said += [{"role": "assistant", "content": "50"}, user("<"), {"role": "tool", "content": "t"}]
    whole = chat.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert chat.decode(row) == whole
    assert row == ids(chat, whole)


def test_policy_tokens_are_never_retokenised(chat: PreTrainedTokenizerFast) -> None:
    """It wrote "12" as two tokens where the tokenizer would take one; only what comes after it is made from text."""
    own = [*(chat.convert_tokens_to_ids(c) for c in "12"), 2]
    assert own[:-1] != ids(chat, "12")
    assert chat.decode(Dialogue(chat).reply([user(">")], own[-1])) == (
        "\n<|im_start|>user\n><|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_end_of_turn_that_the_policy_did_not_write_is_written_for_it(chat: PreTrainedTokenizerFast) -> None:
    """It ended by a stop string, or by another end token."""
    for last in (chat.convert_tokens_to_ids("?"), 0):
        assert chat.decode(Dialogue(chat).reply([user(">")], last)).startswith("<|im_end|>\n<|im_start|>user")


def test_settings_of_the_template_reach_every_turn(chat: PreTrainedTokenizerFast) -> None:
    dialogue = Dialogue(chat, "be brief", {"thinking": False})
    assert chat.decode(dialogue.opening([user("x")])) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think></think>"
    )
    assert chat.decode(dialogue.reply([user("x")], 2)).endswith("<|im_start|>assistant\n<think></think>")
    own = [{"role": "system", "content": "mine"}, user("x")]
    assert "brief" not in chat.decode(dialogue.opening(own))


def test_an_opening_is_encoded_as_a_prompt_is(chat: PreTrainedTokenizerFast) -> None:
    (prompt,) = encode_prompts([{"prompt": "guess"}], chat, max_prompt_tokens=99, system_prompt="be brief")
    assert tuple(Dialogue(chat, "be brief").opening([user("guess")])) == prompt.token_ids
    examples = [user("one"), {"role": "assistant", "content": "1"}]
    (prompt,) = encode_prompts([{"prompt": "guess"}], chat, max_prompt_tokens=99, system_prompt=examples)
    assert tuple(Dialogue(chat, examples).opening([user("guess")])) == prompt.token_ids


def test_plain_text_is_what_was_said_and_nothing_else() -> None:
    tokenizer = character_tokenizer()
    dialogue = Dialogue(tokenizer)
    assert dialogue.opening([user("30-"), user("49?")]) == ids(tokenizer, "30-49?")
    assert dialogue.reply([user(">")], 1) == ids(tokenizer, ">")
    assert dialogue.reply([], 1) == []


def test_demonstrations_teach_only_what_the_policy_says(chat: PreTrainedTokenizerFast) -> None:
    said = [{"role": "assistant", "content": "12"}, user(">"), {"role": "assistant", "content": "50"}]
    for tokenizer, reply in (
        (chat, "\n<|im_start|>user\n><|im_end|>\n<|im_start|>assistant\n"),
        (character_tokenizer(), ">"),
    ):
        end = tokenizer.eos_token_id
        row, taught = Dialogue(tokenizer).demonstration(said)
        first, between, second = [*ids(tokenizer, "12"), end], ids(tokenizer, reply), [*ids(tokenizer, "50"), end]
        assert row == first + between + second
        assert taught == [True] * len(first) + [False] * len(between) + [True] * len(second)
    assert Dialogue(chat).demonstration("12") == ([61, 2], [True, True])


def test_messages_that_a_template_refuses_are_the_users_mistake(chat: PreTrainedTokenizerFast) -> None:
    narrator = [{"role": "narrator", "content": "x"}]
    for use in (lambda d: d.reply(narrator, 2), lambda d: d.opening(narrator)):
        with pytest.raises(UserError, match=r"environment's messages \(roles: narrator\): no narrators"):
            use(Dialogue(chat))


def test_a_template_that_forgets_the_policys_turns_is_refused(chat: PreTrainedTokenizerFast) -> None:
    chat.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match="leaves out what the policy said"):
        Dialogue(chat).reply([user("x")], 2)


def test_words_that_the_tokenizer_does_not_know_are_refused() -> None:
    dialogue = Dialogue(character_tokenizer())
    for use in (lambda: dialogue.reply([user("Wrong")], 1), lambda: dialogue.opening([user("Wrong")])):
        with pytest.raises(UserError, match="does not know every character"):
            use()
