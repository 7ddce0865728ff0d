"""Load a tokenizer that splits text as its ``tokenizer.json`` says.

``tokenizer_config.json`` names a class, and transformers 5 builds the splitting of text that belongs to the class
around the vocabulary of ``tokenizer.json``. Many published folders name the wrong one: DeepSeek's, and the models
distilled from them, say ``LlamaTokenizerFast`` over a byte-level vocabulary. "What is 12 + 345?" then comes back as
"Whatis12+345?". transformers 5.24 reads the file by itself where Llama's class is named, but not for other classes.
"""

from __future__ import annotations

import functools
import logging

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

log = logging.getLogger(__name__)

FILE = "tokenizer.json"
SAMPLES = (
    "What is 12 + 345?",
    "It's 1234567.89, isn't it? WE'LL see",
    " one  two   three ",
    "a\n\n2\n\n\n\tb\r\nc\n",
    "def f(x):\n    return {'a': x ** 2}  # é",
    "北京是中国的首都。",
    "Привет, мир! שלום नमस्ते 🙂",
)
"""Texts whose tokens are compared: digits, spaces, line ends, code, several scripts.

A text need not come back as it was: a tokenizer may normalise it.
"""


def read_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False, field: str = "model.name_or_path"
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub id or a folder; where its class contradicts its file, the file wins, with a message.

    Args:
        name: hub id, or folder in transformers format.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run a class of the repository, which is then used as it is.
        field: how messages name the setting.

    Raises:
        OSError, ValueError: as transformers raises them.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )
    kind = type(tokenizer)
    if kind is PreTrainedTokenizerFast or not issubclass(kind, PreTrainedTokenizerFast):
        return tokenizer  # reads the file as it is, or none
    if not kind.__module__.startswith("transformers."):  # the repository's own code
        return tokenizer
    path = cached_file(
        name,
        FILE,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:  # made from other files
        return tokenizer
    written = Tokenizer.from_file(path)
    written.no_padding()
    written.no_truncation()
    if _first_difference(tokenizer, written) is None:
        return tokenizer
    backend: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(name, revision=revision)
    text = _first_difference(tokenizer, backend.backend_tokenizer)
    if text is None:  # the config adds tokens to the file, in both
        return tokenizer
    _keep_special_tokens(backend, tokenizer)
    _say(
        f"{field}: {name} names the class {kind.__name__}, which splits {text!r} in another way than its {FILE}: "
        "the file is used"
    )
    return backend


@functools.cache
def _say(line: str) -> None:
    """Log a line once: a run loads its tokenizer before its model and with it."""
    log.warning(line)


def _first_difference(tokenizer: PreTrainedTokenizerBase, written: Tokenizer) -> str | None:
    """Return the first sample whose tokens, or whose text from tokens, differ; None if all are equal."""
    for sample in SAMPLES:
        ids = written.encode(sample, add_special_tokens=False).ids
        if tokenizer(sample, add_special_tokens=False)["input_ids"] != ids:
            return sample
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text != written.decode(ids, skip_special_tokens=False):
            return sample
    return None


def _keep_special_tokens(backend: PreTrainedTokenizerBase, named: PreTrainedTokenizerBase) -> None:
    """Take the special tokens that only the named class knows, such as an end that no file repeats."""
    vocabulary = backend.get_vocab()
    for attribute, token in named.special_tokens_map.items():
        if isinstance(token, str) and getattr(backend, attribute, None) is None and token in vocabulary:
            setattr(backend, attribute, token)
