"""Rows of a head without a token, whatever the tokenizer's class lists as its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import CTRLTokenizer, PreTrainedTokenizer

from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model
from gspo_lightning.policy.unsaid import padding_of


class Bytes(PreTrainedTokenizer):
    """Bytes as tokens, listed as ``MistralCommonBackend`` lists them: those above 127 are all named U+FFFD."""

    vocab_size = 256

    def get_vocab(self) -> dict[str, int]:
        return {self._convert_id_to_token(byte): byte for byte in reversed(range(256))}

    def __len__(self) -> int:
        return 256

    def _tokenize(self, text: str) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return token.encode()[0]

    def _convert_id_to_token(self, index: int) -> str:
        return bytes([index]).decode(errors="replace")


def test_tokens_that_share_a_name_are_said() -> None:
    tokenizer = Bytes(eos_token="\0")
    assert tokenizer.eos_token_id == 0
    assert len(tokenizer.get_vocab()) == 128 + 1
    assert padding_of(tokenizer, 260) == (256, 257, 258, 259)
    model = build_tiny_model("tiny-qwen3", seed=0)
    model.resize_token_embeddings(260, mean_resizing=False)
    assert Policy(model, tokenizer).unsaid == (256, 257, 258, 259)


def test_a_row_that_its_class_calls_unknown_has_no_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1, "b": 3, "c": 4}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CTRLTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert tokenizer.convert_ids_to_tokens(2) == "<unk>"
    assert padding_of(tokenizer, 6) == (2, 5)
