"""Draw answers and thumbnails of their prompts' pictures on one sheet, for loggers whose tables show text only."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.core.pictures import Media
from gspo_lightning.policy.vision.image_processor import rgb

WIDTH, GAP, LINE, SIZE = 960, 8, 18, 14
"""Pixels: width of the sheet, gap between items, height of a text line, font size."""
LINES = 5
"""Lines of one text, at most; the rest is cut."""
ROWS = 16
"""Answers on a sheet, at most."""
_OWN_LINES = ("prompt", "completion", "answer")
_INK, _GREY, _RULE = "#222222", "#6b6b6b", "#d9d9d9"
SHOWN = 3
"""Most pictures shown for a prompt."""
SIDE = 160
"""Most pixels of a thumbnail along its longer side: a file stays below 80 KB whatever it shows."""
_ENLARGED = 96
"""Pixels along the longer side up to which a smaller picture is enlarged, by a whole factor."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A row of a sheet.

    ``pictures`` are PNG files, ``count`` is the number of pictures in the prompt, ``texts`` are pairs of a name and a
    text. Prompt, completion and answer have lines of their own; all other texts share one line.
    """

    pictures: Sequence[bytes]
    count: int
    texts: Sequence[tuple[str, str]]


def draw_table(answers: Sequence[Answer], path: Path) -> None:
    """Draw the answers below one another into a PNG file.

    Args:
        answers: rows of the sheet; only the first :data:`ROWS` are drawn.
        path: the PNG file to write.
    """
    from PIL import Image, ImageDraw

    font, shown = _font(), answers[:ROWS]
    loaded = [[Image.open(io.BytesIO(p)).convert("RGB") for p in answer.pictures] for answer in shown]
    left = max((sum(image.width + GAP for image in row) for row in loaded), default=0) + GAP
    texts = [_lines(answer, font, WIDTH - left - GAP) for answer in shown]
    heights = [
        max([LINE * len(lines), *(image.height for image in row)]) + 2 * GAP
        for lines, row in zip(texts, loaded, strict=True)
    ]
    sheet = Image.new("RGB", (WIDTH, max(1, sum(heights))), "white")
    pen, top = ImageDraw.Draw(sheet), 0
    for lines, row, height in zip(texts, loaded, heights, strict=True):
        x = GAP
        for image in row:
            sheet.paste(image, (x, top + GAP))
            pen.rectangle((x - 1, top + GAP - 1, x + image.width, top + GAP + image.height), outline=_RULE)
            x += image.width + GAP
        for number, (text, colour) in enumerate(lines):
            pen.text((left, top + GAP + number * LINE), text, fill=colour, font=font)
        top += height
        pen.line([(0, top - 1), (WIDTH, top - 1)], fill=_RULE)
    sheet.save(path, "PNG")


def _font() -> Any:
    """Load the font that matplotlib ships: it has far more characters than Pillow's."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), SIZE)


def _lines(answer: Answer, font: Any, width: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    said = [f"{name}: {_plain(text)}" for name, text in answer.texts]
    own = [name in _OWN_LINES for name, _ in answer.texts]
    for name, line, alone in zip((name for name, _ in answer.texts), said, own, strict=True):
        if alone:
            colour = _INK if name == "completion" else _GREY
            found += [(part, colour) for part in _wrapped(line, font, width)]
    rest = [line for line, alone in zip(said, own, strict=True) if not alone]
    if hidden := answer.count - len(answer.pictures):
        rest.append(f"{hidden} more pictures")
    return found + [(part, _GREY) for part in _wrapped("  ·  ".join(rest), font, width)]


def _plain(text: str, limit: int = 1000) -> str:
    """Return the text on one line, cut to ``limit`` characters, without characters that a font cannot show."""
    short = text if len(text) <= limit else text[:limit] + "…"
    return "".join("⏎" if c == "\n" else c if c.isprintable() else "�" for c in short)


def _wrapped(text: str, font: Any, width: int) -> list[str]:
    lines: list[str] = []
    while text and len(lines) < LINES:
        low, high = 1, len(text)
        while low < high:  # the longest prefix that fits; width grows with every character
            middle = (low + high + 1) // 2
            low, high = (middle, high) if font.getlength(text[:middle]) <= width else (low, middle - 1)
        lines.append(text[:low])
        text = text[low:]
    if text:
        lines[-1] = lines[-1][:-1] + "…"
    return lines


def thumbnails(media: Media) -> list[bytes]:
    """Return PNG files of the first pictures of a prompt: at most :data:`SHOWN`, up to :data:`SIDE` pixels a side."""
    return [_thumbnail(picture.data) for picture in media[:SHOWN]]


def _thumbnail(data: bytes) -> bytes:
    from PIL.Image import Resampling

    image = rgb(data)
    image.info.clear()  # pixels only: drop metadata such as location and text
    if (factor := _ENLARGED // max(image.size)) > 1:
        image = image.resize((factor * image.width, factor * image.height), Resampling.NEAREST)
    image.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
