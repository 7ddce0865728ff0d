"""Pictures of records: every form that a data set gives them in, their place in the prompt, and bad ones."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts.encode import EncodedPrompts, Encoder
from gspo_lightning.data.prompts.files import PromptFile, read_prompts
from gspo_lightning.data.prompts.pictures.columns import parts_of
from gspo_lightning.data.prompts.pictures.reading import BadPictureError, Pictures, picture_file
from gspo_lightning.data.prompts.prompt_set import Record
from gspo_lightning.policy.load.loading import load_policy, load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.vision.image_processor import image_processor_of
from tests.support.pictures import SEEING, png, seeing_prompt
from tests.support.unreadable import unreadable

FILE = png(0)
START, END, IMAGE, VIDEO = 39, 40, 41, 42
"""Ids of ``tiny-qwen3-vl``: behind 3 special tokens and 36 characters."""
TEMPLATE = (
    "{% for m in messages %}(A:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content"
    " %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}){% endfor %}"
)
"""As that of Qwen-VL: one placeholder a picture."""


def tokenizer_of(template: str | None = None, name: str = "tiny-qwen3-vl") -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(ModelSettings(name))
    tokenizer.chat_template = template
    return tokenizer


def encoded(records: Sequence[Record], tokenizer: PreTrainedTokenizerBase | None = None, **how: Any) -> list[Prompt]:
    """As a run encodes them, and again one by one, which must give the same."""
    found: list[Prompt] = []
    encoder = Encoder(tokenizer or tokenizer_of(), None, {}, "data.train", Pictures(**how))
    prompts = EncodedPrompts(records, encoder, 60, found.append)
    assert list(prompts) == found
    return found


def test_a_picture_stands_before_the_text_and_takes_its_tokens() -> None:
    (prompt,) = encoded([{"prompt": "1+1?", "image": FILE, "answer": "2"}])
    text = tokenizer_of()("1+1?")["input_ids"]
    assert list(prompt.token_ids) == [START, *[IMAGE] * 4, END, *text]  # 32 x 32 pixels, 16 x 16 a token
    (picture,) = prompt.media
    assert (picture.start, picture.rows, picture.columns) == (1, 2, 2)
    assert picture.data == FILE
    assert picture.sha256 == hashlib.sha256(FILE).hexdigest()
    assert prompt.text == "1+1?"
    assert prompt.columns == {"answer": "2"}  # rewards are not sent the picture


def test_every_form_of_a_picture_gives_the_same_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(FILE)
    encoded_text = base64.b64encode(FILE).decode()
    forms: list[Any] = [
        FILE, str(tmp_path / "a.png"), {"bytes": FILE, "path": None}, {"bytes": None, "path": str(tmp_path / "a.png")},
        encoded_text, f"data:image/png;base64,{encoded_text}", Image.open(io.BytesIO(FILE)), [FILE],
    ]  # fmt: skip
    found = encoded([{"prompt": "1?", "image": form} for form in forms])
    assert len({p.token_ids for p in found}) == 1
    pixels = {Image.open(io.BytesIO(p.media[0].data)).convert("RGB").tobytes() for p in found}
    assert len(pixels) == 1
    assert {p.media[0].sha256 for p in found} == {found[0].media[0].sha256, found[6].media[0].sha256}  # Pillow's is new


def test_marks_say_where_pictures_stand() -> None:
    wide = png(1, 48, 16)
    (prompt,) = encoded([{"prompt": "1<image>2<image>3", "images": [FILE, wide]}])
    a, b, c = (tokenizer_of()(digit)["input_ids"][0] for digit in "123")
    assert list(prompt.token_ids) == [a, START, *[IMAGE] * 4, END, b, START, *[IMAGE] * 3, END, c]
    assert [(p.start, p.rows, p.columns) for p in prompt.media] == [(2, 2, 2), (9, 1, 3)]
    with pytest.raises(UserError, match="record 1: the prompt has 1 marks <image>, but the record has 2 pictures"):
        encoded([{"prompt": "1<image>", "images": [FILE, wide]}])


def test_messages_with_parts_and_a_template() -> None:
    tokenizer = tokenizer_of(TEMPLATE)
    address = {"url": f"data:image/png;base64,{base64.b64encode(FILE).decode()}"}
    parts = [{"type": "text", "text": "1"}, {"type": "image_url", "image_url": address}, {"type": "text", "text": "?"}]
    said = {"prompt": [{"role": "user", "content": parts}]}
    by_column = {"prompt": "1<image>?", "image": FILE}
    first, second = encoded([said, by_column], tokenizer)
    assert first.token_ids == second.token_ids
    assert first.media == second.media
    assert first.messages == ({"role": "user", "content": "1<image>?"},)
    assert second.messages == ()
    shown = tokenizer.convert_ids_to_tokens(list(first.token_ids))
    assert shown == ["(", "A", ":", "1", "<|vision_start|>", *["<|image_pad|>"] * 4, "<|vision_end|>", "?", ")"]


@pytest.mark.parametrize("plain", [True, False], ids=["no template", "template"])
@pytest.mark.parametrize("name", SEEING)
def test_tokens_and_places_are_those_of_transformers_processor(name: str, plain: bool) -> None:
    """Pictures of one tile, of three and of five, and line breaks beside them."""
    policy = load_policy(ModelSettings(name))
    tokenizer, image_processor = policy.tokenizer, policy.image_processor
    assert image_processor is not None
    line = "" if name.startswith("tiny-qwen") else "\n"
    files = [png(1, 16, 16), png(2, 64, 20)]
    tokenizer.chat_template = (
        None
        if plain
        else TEMPLATE.replace(
            "<|vision_start|><|image_pad|><|vision_end|>",
            "".join(tokenizer.convert_ids_to_tokens(list(image_processor.around))),
        )
    )
    records = [
        {"prompt": f"1{line}<image>{line}A<image>?", "images": files}, {"prompt": f"{line}1<image>", "image": files[0]}
    ]  # fmt: skip
    found: list[Prompt] = []
    EncodedPrompts(records, Encoder(tokenizer, None, {}, "data.train", Pictures()), 200, found.append)
    begin, end = ("", "") if plain else ("(A:", ")")
    parts = [[f"{begin}1{line}", files[0], f"{line}A", files[1], f"?{end}"], [f"{begin}{line}1", files[0], end]]
    for prompt, written in zip(found, parts, strict=True):
        expected = seeing_prompt(policy, 0, written)
        assert prompt.token_ids == expected.token_ids
        assert prompt.media == expected.media


def test_texts_and_pictures_in_one_set() -> None:
    records = [{"prompt": "1?"}, {"prompt": "2?", "image": FILE}, {"prompt": "3?", "image": None}, {"prompt": "4?"}]
    assert [len(p.media) for p in encoded(records)] == [0, 1, 0, 0]


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>"])
@pytest.mark.parametrize("extra", [{}, {"image": FILE}])
def test_a_text_that_holds_a_placeholder_is_refused(token: str, extra: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"record 2: a text holds <\|(image|video)_pad\|>"):
        encoded([{"prompt": "1?"}, {"prompt": f"1{token}", **extra}])


def test_a_prompt_beyond_the_limit_is_dropped_and_never_cut(caplog: pytest.LogCaptureFixture) -> None:
    large = png(3, 128, 128)  # 64 tokens; the limit is 60
    with caplog.at_level(logging.WARNING):
        (prompt,) = encoded([{"prompt": "1?", "image": large}, {"prompt": "2?", "image": FILE}])
    assert prompt.id == 1
    assert "dropped 1 of 2 prompts" in caplog.text


def test_a_limit_of_pixels_scales_down_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    large = png(3, 128, 128)
    with caplog.at_level(logging.INFO):
        (prompt, _) = encoded([{"prompt": "1?", "image": large}, {"prompt": "2?", "image": FILE}], max_pixels=64 * 64)
    assert [p.tokens for p in prompt.media] == [16]
    assert "1 of 2 pictures are scaled down" in caplog.text


def test_a_text_model_refuses_records_with_pictures() -> None:
    with pytest.raises(UserError, match="record 1 has a picture, and the model reads text only"):
        encoded([{"prompt": "1?", "image": FILE}], tokenizer_of(name="tiny-qwen3"))


def test_pictures_of_a_file_of_records(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    cells = [{"bytes": FILE, "path": "a.png"}, {"bytes": png(9), "path": "b.png"}]
    table = pyarrow.table({"problem": ["<image>1?", "<image>2?"], "images": [[c] for c in cells], "answer": ["1", "2"]})
    pyarrow.parquet.write_table(table, tmp_path / "set.parquet")
    records = read_prompts(PromptFile(str(tmp_path / "set.parquet"), {"prompt": "problem"}))
    first, second = encoded(records)
    assert first.media[0].data == FILE
    assert second.media[0].data == png(9)
    assert first.token_ids[-2:] == tuple(tokenizer_of()("1?")["input_ids"])


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that says it is huge, with one row of zeros."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * (3 * width + 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


BAD: dict[str, tuple[Any, str]] = {
    "truncated": (FILE[: len(FILE) // 2], "is damaged"),
    "nothing": (b"\x89PNG\r\n\x1a\n", "is no picture|is damaged"),
    "no pixels": (bomb(0, 0), "is no picture|is damaged|0 x 0"),
    "a text": (b"there is no picture here, only words" * 9, "is no picture"),
    "100 megapixels": (bomb(10_000, 10_000), "has 10000 x 10000 pixels; 50,000,000 are the most"),
    "bomb": (bomb(60_000, 60_000), "has 60000 x 60000 pixels|damaged"),
    "ribbon": (png(0, 402, 1), "a picture of 402 x 1 pixels is too long"),
    "no file": ("pictures/nowhere.png", "is the path of a file that does not exist"),
    "address": ("https://example.org/a.png", "is an address, and data.pictures.urls does not allow downloads"),
    "script": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + b"x" * 99, "is no picture"),
    "base64 of a text": (base64.b64encode(b"only words here" * 9).decode(), "is no picture"),
    "a number": (7, "is int, neither a path, nor bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_stops_at_the_start_or_drops_its_record(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    value, said = BAD[kind]
    records = [{"prompt": "1?", "image": FILE}, {"prompt": "2?", "image": value}, {"prompt": "3?"}]
    with pytest.raises(UserError, match=said) as caught:
        encoded(records)
    assert "record 2" in str(caught.value)
    assert "data.pictures.bad: drop" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        kept = encoded(records, bad="drop")
    assert [p.id for p in kept] == [0, 2]
    assert len([r for r in caplog.records if "dropped record 2" in r.getMessage()]) == 1


def test_only_bad_pictures_leave_no_prompt() -> None:
    with pytest.raises(UserError, match=r"no prompt is left.*picture that cannot be read"):
        encoded([{"prompt": "2?", "image": b"words"}], bad="drop")


def test_parts_of_another_kind_are_refused() -> None:
    with pytest.raises(UserError, match="neither a text nor a picture"):
        parts_of({"prompt": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]})


def test_the_tokenizer_of_a_text_model_knows_nothing_of_pictures() -> None:
    assert image_processor_of(tokenizer_of(name="tiny-qwen3")) is None
    assert "<|image_pad|>" not in tokenizer_of(name="tiny-qwen3").get_vocab()


def test_a_picture_that_may_not_be_read_is_not_taken_for_base64(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(FILE)
    with unreadable(file), pytest.raises(BadPictureError, match="cannot be read: Permission denied"):
        picture_file(str(file))
