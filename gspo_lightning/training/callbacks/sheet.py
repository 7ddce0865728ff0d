"""Draw answers and thumbnails of their prompts' pictures on one sheet, for loggers whose tables show text only."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.core.pictures import Media
from gspo_lightning.policy.vision.image_processor import rgb

WIDTH = 960
"""Pixels across the sheet."""
GAP = 8
"""Pixels between items."""
LINE = 18
"""Pixels from one line of text to the next."""
SIZE = 14
"""Size of the font in pixels."""
LINES = 5
"""Lines of one text, at most; the rest is cut."""
ROWS = 16
"""Answers on a sheet, at most."""
_OWN_LINES = ("prompt", "completion", "answer")
_INK = "#222222"
_GREY = "#6b6b6b"
_RULE = "#d9d9d9"
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

    font = _font()
    answers = answers[:ROWS]
    pictures = [[Image.open(io.BytesIO(file)).convert("RGB") for file in answer.pictures] for answer in answers]
    left = max((sum(image.width + GAP for image in row) for row in pictures), default=0) + GAP
    texts = [_lines(answer, font, WIDTH - left - GAP) for answer in answers]
    heights = []
    for lines, row in zip(texts, pictures, strict=True):
        highest = max([LINE * len(lines), *(image.height for image in row)])
        heights.append(highest + 2 * GAP)
    sheet = Image.new("RGB", (WIDTH, max(1, sum(heights))), "white")
    pen = ImageDraw.Draw(sheet)
    top = 0
    for lines, row, height in zip(texts, pictures, heights, strict=True):
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
    """Return the lines of an answer, each with its colour."""
    lines: list[tuple[str, str]] = []
    last_line = []
    for name, text in answer.texts:
        labelled = f"{name}: {_plain(text)}"
        if name in _OWN_LINES:
            colour = _INK if name == "completion" else _GREY
            lines += [(line, colour) for line in _wrapped(labelled, font, width)]
        else:
            last_line.append(labelled)
    hidden = answer.count - len(answer.pictures)
    if hidden:
        last_line.append(f"{hidden} more pictures")
    return lines + [(line, _GREY) for line in _wrapped("  ·  ".join(last_line), font, width)]


def _plain(text: str, limit: int = 1000) -> str:
    """Return the text on one line, cut to ``limit`` characters, without characters that a font cannot show."""
    short = text if len(text) <= limit else text[:limit] + "…"
    return "".join("⏎" if c == "\n" else c if c.isprintable() else "�" for c in short)


def _wrapped(text: str, font: Any, width: int) -> list[str]:
    lines: list[str] = []
    while text and len(lines) < LINES:
        # the longest prefix that fits, by halving: width grows with every character
        fits = 1
        longest = len(text)
        while fits < longest:
            middle = (fits + longest + 1) // 2
            if font.getlength(text[:middle]) <= width:
                fits = middle
            else:
                longest = middle - 1
        lines.append(text[:fits])
        text = text[fits:]
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
    factor = _ENLARGED // max(image.size)
    if factor > 1:
        image = image.resize((factor * image.width, factor * image.height), Resampling.NEAREST)
    image.thumbnail((SIDE, SIDE), Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
