"""Pre-tokenizers of byte-level vocabularies, by the name that a GGUF file gives them (``tokenizer.ggml.pre``).

A name stands for the regular expressions in the ``tokenizer.json`` of a family of models. They are applied one after
the other, each to the pieces that those before it left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer


@dataclass(frozen=True)
class Splits:
    """Splits of a text that come before merges."""

    patterns: tuple[str, ...]
    """Regular expressions, applied in this order."""
    whole: bool = False
    """A piece that is a token as a whole is that token, whatever its merges say."""
    bos: bool = False
    """A beginning-of-sequence token precedes the text if the file does not say whether one does."""

    def pre_tokenizer(self) -> PreTokenizer:
        """Return the splits, followed by the byte alphabet."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_WORD = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"{_WORD}{_UPPER}*{_LOWER}+", rf"{_WORD}{_UPPER}+{_LOWER}*")
_CJK = "[一-龥ࠀ-一가-퟿]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35 = rf"{_ENDINGS}|{_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_TEKKEN = rf"{'|'.join(_CASED)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (
    "|".join(f"{word}{_ENDINGS}?" for word in _CASED) + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",  # noqa: RUF001
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACES,
)

SPLITS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum"), Splits((_GPT2,))),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        Splits((r"\p{N}", _GPT2)),
    ),
    "falcon": Splits((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), Splits((_QWEN2,))),
    "qwen35": Splits((_QWEN35,)),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), Splits((_LLAMA3,), whole=True, bos=True)
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), Splits((_LLAMA3,))),
    "glm4": Splits((_LLAMA3,), whole=True),
    "tekken": Splits((_TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Splits((_GPT4O,))),
    "deepseek-coder": Splits(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Splits(_DEEPSEEK_V3)),
}
"""Name in a GGUF file -> how text is split. Other names are refused: another split means other tokens."""
