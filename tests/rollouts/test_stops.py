"""Stop strings: the end of a text says what the whole text says, at every token and for every kind of tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts import Draws, GroupedSampler, RolloutSource, TransformersGenerate
from gspo_lightning.rollouts.ending import has_ended, texts_ended
from gspo_lightning.rollouts.sampler.decoding_rows import DecodingRows, ResponseBuffer
from gspo_lightning.rollouts.source import ResponsePrefix

TEXT = """The sum of 17 and 25 is 42. So the answer is: 42.</answer>\n\nQuestion: don't stop , please . Straße, Größe
日本語の答えは四十二です。次の質問 🙂🙃 ok 👩\u200d👧 done\n\n\n  indented    code
```python\nprint("x")\n``` été où Ω≈ç"""
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def wrapped(tokenizer: Tokenizer, clean: bool = False) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=clean,
    )  # fmt: skip


def byte_level(clean: bool = False) -> PreTrainedTokenizerFast:
    """GPT-2's, Llama 3's, Qwen's: a token may be a part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    return wrapped(tokenizer, clean)


def with_bytes() -> PreTrainedTokenizerFast:
    """Llama 2's and Mistral's: words begin with a mark, unknown characters become bytes, the first space is taken."""
    words = [f"▁{w}" for w in ("the", "answer", "is", "stop", "END")] + list("abcdefghijklmnopqrst.:▁")
    vocabulary = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *words]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(vocabulary)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return wrapped(tokenizer)


def metaspace() -> PreTrainedTokenizerFast:
    """T5's and Gemma's kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(
        [TEXT], trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    )
    return wrapped(tokenizer)


def word_pieces() -> PreTrainedTokenizerFast:
    """BERT's: spaces belong to no token, and are cleaned up."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL))
    return wrapped(tokenizer, clean=True)


def wide_words() -> PreTrainedTokenizerFast:
    """Tokens longer than any tail."""
    words = ["x" * 200, "ab" * 40, "stop", "st", "op", "\n" * 64]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *words])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    return wrapped(tokenizer)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "characters": character_tokenizer,
    "byte-level BPE": byte_level,
    "byte-level BPE, cleaned": lambda: byte_level(clean=True),
    "byte fallback": with_bytes,
    "Metaspace": metaspace,
    "WordPiece": word_pieces,
    "wide tokens": wide_words,
}


def tokens(tokenizer: PreTrainedTokenizerFast, random_: random.Random, count: int) -> list[int]:
    """Text that was taught, random tokens, and long silences, in turns."""
    found: list[int] = []
    while len(found) < count:
        kind = random_.randrange(4)
        if kind == 0:
            start = random_.randrange(len(TEXT))
            found += tokenizer(TEXT[start : start + 40], add_special_tokens=False)["input_ids"]
        elif kind == 1 and random_.random() < 0.3:
            found += [tokenizer.eos_token_id] * random_.randrange(1, 60)  # special: they write nothing
        else:
            found += [random_.randrange(len(tokenizer)) for _ in range(random_.randrange(1, 20))]
    return found[:count]


def ends_at(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], stops: Sequence[str]) -> int | None:
    """The definition: the first number of tokens whose whole text contains a stop string."""
    texts = (tokenizer.decode(list(ids[:n]), skip_special_tokens=True) for n in range(1, len(ids) + 1))
    return next((n for n, text in enumerate(texts, 1) if any(stop in text for stop in stops)), None)


def ends_at_by_tail(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], stops: Sequence[str]) -> int | None:
    for n in range(1, len(ids) + 1):
        written = list(ids[:n])

        def newest(which: Sequence[int], count: int | None, written: list[int] = written) -> list[list[int]]:
            return [written if count is None else written[-count:] for _ in which]

        if texts_ended(tokenizer, stops, [ids[n - 1]], newest)[0]:
            return n
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_text_says_what_the_whole_says(kind: str) -> None:
    tokenizer, random_ = KINDS[kind](), random.Random(kind)
    where = set()
    for _ in range(24):
        ids = tokens(tokenizer, random_, 160)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        stops = ["never written at all"]
        if random_.random() < 0.9 and text:
            start = random_.randrange(len(text))
            stops.append(text[start : start + random_.randrange(1, 24)])
        expected = ends_at(tokenizer, ids, stops)
        assert ends_at_by_tail(tokenizer, ids, stops) == expected, (stops, text)
        where.add(expected)
    assert len(where) > 8  # they do end, in different places


def test_stop_search_decodes_a_bounded_tail_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level()
    ids = tokenizer(TEXT * 20, add_special_tokens=False)["input_ids"][:2000]
    decoded, decode = [0], tokenizer.batch_decode

    def counting(rows: Sequence[Sequence[int]], **options: bool) -> list[str]:
        decoded[0] += sum(map(len, rows))
        found: list[str] = decode(rows, **options)
        return found

    monkeypatch.setattr(tokenizer, "batch_decode", counting)
    assert ends_at_by_tail(tokenizer, ids, ["</never>", "\n\n\n\n"]) is None
    assert decoded[0] < 80 * len(ids)  # the whole text at every token would be 1000 times the number of tokens


@pytest.mark.thorough("generate")
@pytest.mark.parametrize("source", [GroupedSampler(), TransformersGenerate()], ids=["sampler", "generate"])
def test_a_source_decodes_the_ends_of_long_responses_only(
    source: RolloutSource, policy: Policy, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, decode = [0], policy.tokenizer.batch_decode

    def counting(rows: Sequence[Sequence[int]], **options: bool) -> list[str]:
        decoded[0] += sum(map(len, rows))
        found: list[str] = decode(rows, **options)
        return found

    monkeypatch.setattr(policy.tokenizer, "batch_decode", counting)
    sampling = SamplingParams(300, stop_strings=("never written",))
    groups = source.generate(policy, prompts[:1], group_size=2, sampling=sampling, draws=Draws(7))
    written = sum(len(r.token_ids) for r in groups[0])
    assert written == 600
    assert decoded[0] < 80 * written  # whole texts: 150 times


def test_the_newest_tokens_of_rows() -> None:
    prompt = Prompt(0, "p", (5, 6))
    beginnings = [ResponsePrefix(prompt, k, (5, 6), 0, 6, written=tuple(range(90, 90 + k))) for k in range(3)]
    buffer, device = ResponseBuffer(beginnings, torch.device("cpu")), torch.device("cpu")
    rows = DecodingRows.of(beginnings, range(len(beginnings)), [0] * len(beginnings), device)
    for step in range(4):
        buffer.note(rows, torch.tensor([10, 20, 30]) + step, torch.zeros(3))
    rows = rows[torch.tensor([2, 0, 1])]
    assert buffer.newest(rows, [0, 2], None) == [[90, 91, 30, 31, 32, 33], [90, 20, 21, 22, 23]]
    assert buffer.newest(rows, [1, 0], 2) == [[12, 13], [32, 33]]
    assert buffer.newest(rows, [0, 1], 5) == [[91, 30, 31, 32, 33], [10, 11, 12, 13]]
    assert buffer.newest(rows, [2], 9) == [[90, 20, 21, 22, 23]]


def test_a_row_that_has_ended_is_not_looked_at(policy: Policy) -> None:
    asked: list[int] = []

    def newest(which: Sequence[int], count: int | None) -> list[list[int]]:
        asked.extend(which)
        return [policy.tokenizer("7+5#")["input_ids"] for _ in which]

    going = torch.tensor([True, False, True, True])
    sampling = SamplingParams(4, stop_token_ids=(1,), stop_strings=("#",))
    ended = has_ended(policy, torch.tensor([9, 9, 1, 9]), sampling, newest, going)
    assert ended.tolist() == [True, False, True, True]
    assert set(asked) == {0, 3}
