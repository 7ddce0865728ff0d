"""Build the tokenizer that a GGUF file describes: its own ids, its own splits, and its own special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.load.gguf_pre_tokenizers import SPLITS

FIELD = "model.name_or_path"
ORIGINAL = "use the original folder or hub id"
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_UNUSED = 5
_BLANK = "\u2581"


def tokenizer_of(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a GGUF file.

    Args:
        fields: the file's metadata by name.

    Raises:
        UserError: the vocabulary is of a kind, or is split in a way, that is not known here.
    """
    read = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    kind = read.get("model")
    tokens = read.get("tokens")
    if not tokens or len(set(tokens)) != len(tokens):
        raise UserError(FIELD, "its vocabulary is missing, or has a token twice", fix=ORIGINAL)
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(read)
    elif kind == "llama":
        tokenizer = _sentencepiece(read)
        adds_bos = True
    else:
        raise UserError(FIELD, f"its vocabulary is of the kind {kind!r}, not 'gpt2' or 'llama'", fix=ORIGINAL)
    tokenizer.add_tokens(list(_added(read, "phi" in str(fields.get("general.name", "")).lower())))
    special = {
        f"{name}_token": tokens[read[key]]
        for name, key in _SPECIAL.items()
        if key in read and 0 <= read[key] < len(tokens)
    }
    begin = special.get("bos_token") if read.get("add_bos_token", adds_bos) else None
    end = special.get("eos_token") if read.get("add_eos_token", False) else None
    if begin is None and read.get("add_bos_token"):
        raise UserError(FIELD, "it adds a token at the beginning of a text and does not say which", fix=ORIGINAL)
    if begin or end:
        around = [f"{begin}:0"] * bool(begin), [f"{end}:0"] * bool(end)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*around[0], "$A:0", *around[1]],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end) if token],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=fields.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **special,
    )


_SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}


def _added(read: Mapping[str, Any], strips: bool) -> Iterator[AddedToken]:
    """Yield the tokens that are found in a text before it is split: control tokens, and those of the user.

    Args:
        read: metadata of the tokenizer.
        strips: True if control tokens take the space after them, as in Phi-3.
    """
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    always = {read.get("bos_token_id"), read.get("eos_token_id"), read.get("eot_token_id")}
    kinds: Sequence[int] = read.get("token_type") or [_NORMAL] * len(read["tokens"])
    for index, (token, kind) in enumerate(zip(read["tokens"], kinds, strict=True)):
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) or index in always:
            special = kind != _USER_DEFINED
            yield AddedToken(token, normalized=False, special=special, rstrip=strips and token not in kept)


def _ids(read: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token, without the names by which llama.cpp's converter fills rows without a token.

    Published models round their vocabularies up; their tokenizers elsewhere do not know these rows either, so that a
    policy never says them.
    """
    kinds: Sequence[int] = read.get("token_type") or [_NORMAL] * len(read["tokens"])
    named = {value for key, value in read.items() if key.endswith("token_id")}
    return {
        token: index
        for index, (token, kind) in enumerate(zip(read["tokens"], kinds, strict=True))
        if kind != _UNUSED or index in named or not _PADDING.fullmatch(token)
    }


_PADDING = re.compile(r"\[PAD\d+\]")


def _byte_level(read: Mapping[str, Any]) -> tuple[Tokenizer, bool]:
    """Return byte-level BPE, and whether it adds a first token unless the file says otherwise."""
    name = read.get("pre")
    if name not in SPLITS:
        how = f"as {name!r} says, which is not known here" if name else "in a way that it does not say"
        raise UserError(FIELD, f"its vocabulary splits text {how}: other pieces, other tokens", fix=ORIGINAL)
    splits = SPLITS[name]
    ids = _ids(read)
    merges = [_pair(merge) for merge in read["merges"]]
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=splits.whole))
    tokenizer.pre_tokenizer = splits.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, splits.bos


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.index(" ", 1)
    return merge[:cut], merge[cut + 1 :]


def _sentencepiece(read: Mapping[str, Any]) -> Tokenizer:
    """Return BPE over characters, with merges from the scores: of two neighbours, the best-scored token is formed."""
    tokens = read["tokens"]
    scores = read["scores"]
    ids = _ids(read)
    ranked = sorted(
        (-scores[index], cut, token)
        for token, index in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    )
    merges = [(token[:cut], token[cut:]) for _, cut, token in ranked]
    unknown = tokens[read.get("unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    blank = normalizers.Replace(" ", _BLANK)
    prefix = read.get("add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_BLANK), blank]) if prefix else blank
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer
