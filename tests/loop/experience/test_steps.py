"""From places in a text to places among tokens, for tokenizers whose tokens do not end where steps do."""

from __future__ import annotations

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.experience.steps import token_steps
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards.steps import split_steps


def byte_level(*merged: str) -> PreTrainedTokenizerFast:
    """Bytes, and longer tokens as they are written here."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in merged])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", clean_up_tokenization_spaces=False)


def sentence_pieces(*pieces: str) -> PreTrainedTokenizerFast:
    """Words with a mark for the space before them; decoding drops the first one."""
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", clean_up_tokenization_spaces=False)


def rollout(ids: list[int], text: str) -> Rollout:
    mask = torch.ones(len(ids), dtype=torch.bool)
    return Rollout(Prompt(0, "p", (1,)), 0, torch.tensor(ids), None, mask, FinishReason.STOP, 0, text)


def ends(tokenizer: PreTrainedTokenizerFast, ids: list[int], marker: str) -> list[int]:
    text = tokenizer.decode(ids, skip_special_tokens=True)
    steps = [(end, float(i)) for i, end in enumerate(split_steps(text, marker))]
    return [end for end, _ in token_steps(rollout(ids, text), steps, tokenizer)]


def test_ends_of_steps_among_character_tokens() -> None:
    tokenizer = character_tokenizer()
    ids = [*tokenizer("7+5=2;2*3=6;#6").input_ids, tokenizer.eos_token_id]
    assert ends(tokenizer, ids, ";") == [6, 12, 15]  # the end token belongs to the last step


def test_a_token_over_the_end_of_a_step_belongs_to_the_next_one() -> None:
    tokenizer = byte_level(".\n", "\nB", "C\n\n")
    ids = tokenizer("A.\nB.C\n\nD\nBE").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["A", ".\n", "B", ".", "C\n\n", "D", "\nB", "E"]
    assert ends(tokenizer, ids, "\n") == [2, 5, 6, 8]


def test_characters_of_several_tokens() -> None:
    tokenizer = byte_level()
    text = "é=é\nüüü\nz"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text.encode())
    assert ends(tokenizer, ids, "\n") == [6, 13, 14]


def test_a_decoder_that_drops_the_first_space() -> None:
    tokenizer = sentence_pieces("▁a", "▁b", ".")
    ids = tokenizer.convert_tokens_to_ids(["▁a", ".", "▁b", "▁b", ".", "▁a"])
    assert tokenizer.decode(ids) == "a. b b. a"
    assert ends(tokenizer, ids, ".") == [2, 5, 6]


def test_thousands_of_tokens_are_exact() -> None:
    tokenizer = byte_level("xyz", ".\n")
    text = "".join("xyz" * (1 + i % 97) + ".\n" for i in range(150))
    ids = tokenizer(text).input_ids
    found = ends(tokenizer, ids, "\n")
    assert len(ids) > 6000
    assert found == [i + 1 for i, token in enumerate(tokenizer.convert_ids_to_tokens(ids)) if token == ".\n"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(1, 1.0), (2, 0.0), (9, 4.0)], [(1, 1.0), (4, 2.0)]),  # the middle step has no token of its own
        ([(4, 1.0), (5, 0.0)], [(3, 1.0), (4, 0.0)]),
        ([], []),
    ],
)
def test_a_step_without_a_token_is_scored_with_the_next_one(
    steps: list[tuple[int, float]], expected: list[tuple[int, float]]
) -> None:
    tokenizer = byte_level("bcd")
    ids = [*tokenizer("abcd").input_ids[:1], *tokenizer("bcd").input_ids, *tokenizer("xy").input_ids]
    if steps and steps[0][0] == 4:
        ids = [*tokenizer("abcx").input_ids[:3], *tokenizer("y").input_ids]
        steps = [(3, 1.0), (4, 0.0)]
    found = token_steps(rollout(ids, tokenizer.decode(ids)), steps, tokenizer)
    assert list(found) == expected


def test_only_tokens_of_the_policy_count() -> None:
    tokenizer = character_tokenizer()
    one = rollout(tokenizer("1;xx2;3").input_ids, "1;2;3")
    one.response_mask[2:4] = False
    assert token_steps(one, [(2, 1.0), (4, 2.0), (5, 3.0)], tokenizer) == ((2, 1.0), (6, 2.0), (7, 3.0))
