"""From records to token ids: the chat template, special tokens once, nothing ever cut."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.data.prompts.files import PromptFile
from gspo_lightning.data.prompts.specials import check_turn_end

SPECIAL = ["<s>", "</s>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<think>"]
WORDS = ["be", "brief", "what", "is", "one", "plus", "?", "yes"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinking %}<think>{% endif %}{% endif %}"
)


@pytest.fixture
def chat() -> PreTrainedTokenizerFast:
    """A word tokenizer that adds <s> by itself, with a chat template that writes <s> too."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[3:],
        chat_template=TEMPLATE,
    )


def tokens(tokenizer: PreTrainedTokenizerFast, prompt: object, **settings: Any) -> str:
    (found,) = encode_prompts([{"prompt": prompt}], tokenizer, max_prompt_tokens=64, **settings)
    return " ".join(tokenizer.convert_ids_to_tokens(list(found.token_ids)))


def test_a_text_becomes_one_user_message_with_one_beginning(chat: PreTrainedTokenizerFast) -> None:
    assert chat("what is one")["input_ids"][0] == 0  # this tokenizer would add a second <s>
    assert tokens(chat, "what is one") == "<s> <|user|> what is one <|end|> <|assistant|>"


def test_a_system_prompt_comes_first(chat: PreTrainedTokenizerFast) -> None:
    expected = "<s> <|system|> be brief <|end|> <|user|> what <|end|> <|assistant|>"
    assert tokens(chat, "what", system_prompt="be brief") == expected


def test_worked_examples_come_first_as_earlier_turns(chat: PreTrainedTokenizerFast) -> None:
    examples = [{"role": "user", "content": "what is"}, {"role": "assistant", "content": "one"}]
    expected = "<s> <|user|> what is <|end|> <|assistant|> one <|end|> <|user|> plus one ? <|end|> <|assistant|>"
    assert tokens(chat, "plus one ?", system_prompt=examples) == expected
    assert len(examples) == 2


def test_chat_template_kwargs_reach_the_template(chat: PreTrainedTokenizerFast) -> None:
    assert tokens(chat, "what", chat_template_kwargs={"thinking": True}).endswith("<|assistant|> <think>")
    assert tokens(chat, "what", chat_template_kwargs={"thinking": False}).endswith("<|end|> <|assistant|>")


def test_a_list_of_messages_is_rendered_as_it_is(chat: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "what is"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "plus one ?"},
    ]
    expected = "<s> <|user|> what is <|end|> <|assistant|> one <|end|> <|user|> plus one ? <|end|> <|assistant|>"
    assert tokens(chat, messages) == expected
    assert tokens(chat, messages, system_prompt="be brief").startswith("<s> <|system|> be brief <|end|> <|user|>")
    assert len(messages) == 3  # the record is not changed


def test_messages_of_texts_in_parts_are_read_as_texts(chat: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": WORDS[0]}, {"type": "text", "text": f" {WORDS[1]}"}]
    whole = [{"role": "user", "content": f"{WORDS[0]} {WORDS[1]}"}]
    assert tokens(chat, [{"role": "user", "content": parts}]) == tokens(chat, whole)
    (found,) = encode_prompts([{"prompt": [{"role": "user", "content": parts}]}], chat, max_prompt_tokens=64)
    assert list(found.messages) == whole


@pytest.mark.parametrize("content", [5, 1.5, {"a": 1}, None, [5]])
def test_a_content_that_a_template_stumbles_over_is_named_by_its_record(
    content: object, chat: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    chat.chat_template = "{% for m in messages %}{{ 'a ' + m['content'] }}{% endfor %}"
    prompt = [{"role": "user", "content": content}]
    with pytest.raises(UserError, match="record 1"):
        encode_prompts([{"prompt": prompt}], chat, max_prompt_tokens=64)
    if not isinstance(content, list):  # parts may be pictures
        file = tmp_path / "a.jsonl"
        file.write_text(json.dumps({"prompt": prompt}) + "\n")
        with pytest.raises(UserError, match=r"a.jsonl:1: 'prompt', message 1: must have a text as 'role'"):
            list(PromptFile(str(file)).records())


def test_without_a_template_a_text_is_encoded_as_the_tokenizer_does(chat: PreTrainedTokenizerFast) -> None:
    chat.chat_template = None
    assert tokens(chat, "what is one") == "<s> what is one"


@pytest.mark.parametrize(
    ("prompt", "settings", "what"),
    [
        ("what", {"system_prompt": "be brief"}, "data.system_prompt"),
        ([{"role": "user", "content": "what"}], {}, "a list of chat messages as prompt"),
    ],
)
def test_chat_without_a_template_is_refused(
    chat: PreTrainedTokenizerFast, prompt: object, settings: dict[str, str], what: str
) -> None:
    chat.chat_template = None
    with pytest.raises(UserError, match=f"{what} needs a chat template, and this tokenizer has none"):
        tokens(chat, prompt, **settings)


def test_prompts_keep_id_text_and_columns(chat: PreTrainedTokenizerFast) -> None:
    records = [{"prompt": "what", "answer": "2"}, {"prompt": [{"role": "user", "content": "is"}], "level": 3}]
    first, second = encode_prompts(records, chat, max_prompt_tokens=64)
    assert (first.id, first.text, first.columns) == (0, "what", {"answer": "2"})
    assert (second.id, second.columns) == (1, {"level": 3})
    assert second.text == "<s><|user|> is <|end|><|assistant|>"


def test_too_long_prompts_are_dropped_with_a_message_and_never_cut(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("gspo_lightning"), "propagate", True)
    texts = ["1+1:", "1+1+1:", "1+1+1+1:", "2+2:", "9" * 700]
    with caplog.at_level(logging.WARNING, logger="gspo_lightning"):
        found = encode_prompts([{"prompt": t} for t in texts], tokenizer, max_prompt_tokens=6, field="data.val")
    assert [(p.id, p.text, len(p.token_ids)) for p in found] == [(0, "1+1:", 4), (1, "1+1+1:", 6), (3, "2+2:", 4)]
    (message,) = [r.getMessage() for r in caplog.records if r.name.startswith("gspo_lightning")]
    assert message.startswith("data.val: dropped 2 of 5 prompts that are longer than data.max_prompt_tokens = 6")


def test_nothing_left_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match=r"no prompt is left: all 2 exceed data\.max_prompt_tokens = 3") as caught:
        encode_prompts([{"prompt": "1+1:"}, {"prompt": "2+2:"}], tokenizer, max_prompt_tokens=3)
    assert caught.value.fix == "raise data.max_prompt_tokens"


def test_no_records_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="holds no records"):
        encode_prompts([], tokenizer, max_prompt_tokens=3)


def test_unknown_characters_are_refused_with_their_record(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="record 2: the tokenizer does not know every character of") as caught:
        encode_prompts([{"prompt": "1+1:"}, {"prompt": "1§1:"}], tokenizer, max_prompt_tokens=9, field="data.val")
    assert caught.value.field == "data.val"


def test_an_end_token_that_doubles_as_unknown_token_is_no_unknown_character(chat: PreTrainedTokenizerFast) -> None:
    """As in GPT-2, whose tokenizer knows every byte."""
    chat.unk_token = "</s>"
    chat.chat_template = "{% for m in messages %}{{ m.content }} </s>{% endfor %}"
    assert tokens(chat, "what is one") == "what is one </s>"


def test_a_prompt_without_tokens_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="record 1: the prompt has no tokens"):
        encode_prompts([{"prompt": ""}], tokenizer, max_prompt_tokens=9)


def test_encoding_is_what_the_sampler_reads_back(tokenizer: PreTrainedTokenizerFast) -> None:
    (found,) = encode_prompts([{"prompt": "7+5*3-4:"}], tokenizer, max_prompt_tokens=8)
    assert tokenizer.decode(list(found.token_ids)) == "7+5*3-4:"
    assert len(found.token_ids) == 8  # nothing added, exactly at the limit


def test_prompts_that_begin_twice_or_have_ended_are_refused(chat: PreTrainedTokenizerFast) -> None:
    prompts = [{"prompt": text} for text in ("<s> what", "what", "<s> one")]
    chat.chat_template = None
    with pytest.raises(UserError, match=r"2 of 3 prompts begin with '<s>' twice\n  fix: take it out of the prompts"):
        encode_prompts(prompts, chat, max_prompt_tokens=64)
    chat.chat_template = "{{ bos_token }}<s>{{ messages[0].content }}"
    with pytest.raises(UserError, match="1 of 1 prompts begin with '<s>' twice"):
        tokens(chat, "what")
    chat.chat_template = None
    chat._tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    with pytest.raises(UserError, match=r"1 of 1 prompts end with '</s>'.*\n  fix: .*add_eos_token=False"):
        tokens(chat, "what")


def test_a_template_without_the_begin_token_that_the_tokenizer_writes_is_said_once(
    chat: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    """A model trained with the token reads prompts without it as the middle of a text."""
    tokens(chat, "what")
    assert "prompts begin without" not in caplog.text
    chat.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    for _ in range(2):
        assert tokens(chat, "what is one", field="data.a_set_of_this_test") == "what is one"
    said = (
        "data.a_set_of_this_test: prompts begin without '<s>': the tokenizer puts it before other texts, but the chat"
    )
    assert [m.startswith(said) for m in caplog.messages] == [True]
    chat._tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokens(chat, "what is", field="data.another_set")  # a tokenizer that never writes it is consistent
    assert len(caplog.messages) == 1


def test_a_turn_that_ends_with_a_token_that_ends_nothing_is_said(
    chat: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    check_turn_end(chat, [1])
    assert "ends an answer with '<|end|>', which ends no response here ('</s>' do)" in caplog.text
    assert "data.stop_token_ids: [6]" in caplog.text
    caplog.clear()
    check_turn_end(chat, [1, 6])
    chat.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    check_turn_end(chat, [1])
    chat.chat_template = None
    check_turn_end(chat, [1])
    assert not caplog.text
