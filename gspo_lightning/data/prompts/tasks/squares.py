"""Task of configs/vision.yaml: count the red squares of a small picture.

A picture of 32 x 32 pixels shows squares of 8 x 8 in three colours at random places of a 4 x 4 board. The prompt is the
same for every picture, so an answer given without looking is a guess.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Literal

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import permutation, stable_hash, stream
from gspo_lightning.data.prompts.prompt_set import Demonstration, PromptSet, Record

Split = Literal["cold_start", "train", "held_out"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}
_CELLS = 4
_SIDE = 8
_COLOURS = ((255, 255, 255), (220, 30, 30), (30, 160, 60), (40, 60, 220))
"""White for empty cells; red squares are counted."""


class SquaresTask(PromptSet):
    """Counting red squares (configs/vision.yaml); the answers 0 to ``most`` are equally frequent.

    The splits are disjoint: a hash of the picture alone decides its split.

    Args:
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts.
        most: largest number of red squares in a picture, 1 to 8.
        seed: of the pictures drawn.
        shuffled: give each prompt the picture of another one, so that answers can only be guesses.
        wrong: share of the demonstrations with a wrong number.
    """

    def __init__(
        self,
        split: Split = "train",
        size: int = 2048,
        most: int = 3,
        seed: int = 0,
        shuffled: bool = False,
        wrong: float = 0.0,
    ) -> None:
        if split not in _SHARES:
            raise UserError("SquaresTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if not 1 <= most <= 8:
            raise UserError("SquaresTask.most", f"is {most}; it must lie in 1 to 8")
        if size < 2:
            raise UserError("SquaresTask.size", f"is {size}; it must be at least 2")
        if not 0 <= wrong < 1:
            raise UserError("SquaresTask.wrong", f"is {wrong}; it must lie in [0, 1)")
        self.split = split
        self.size = size
        self.most = most
        self.seed = seed
        self.shuffled = shuffled
        self.wrong = wrong

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt``, ``image`` (a PNG file) and ``answer``."""
        boards = self._boards()
        pictured = boards
        if self.shuffled:
            pictured = [boards[int(i)] for i in permutation(stream(self.seed, 2), len(boards))]
        return [
            {"prompt": "?", "image": _png(picture), "answer": str(board.count(1))}
            for board, picture in zip(boards, pictured, strict=True)
        ]

    def demonstrations(self) -> Sequence[Demonstration]:
        """Return records with their answers; a share ``wrong`` of the answers is off."""
        pairs: list[Demonstration] = []
        for i, record in enumerate(self.records()):
            draw = stream(self.seed, 1, i)
            answer = int(record["answer"])
            if draw % 1_000_000 < self.wrong * 1_000_000:
                answer = (answer + 1 + draw // 1_000_000 % self.most) % (self.most + 1)
            pairs.append(({k: record[k] for k in ("prompt", "image")}, f"#{answer}"))
        return pairs

    def _boards(self) -> list[tuple[int, ...]]:
        """Return the cell colours of all boards, each board once."""
        boards: dict[tuple[int, ...], None] = {}
        counter = 0
        while len(boards) < self.size:
            board = _board(stream(self.seed, 0, counter), len(boards) % (self.most + 1))
            counter += 1
            if stable_hash(str(board)) % 10 in _SHARES[self.split]:
                boards[board] = None
        return list(boards)


def _board(draw: int, red: int) -> tuple[int, ...]:
    """Return a board with ``red`` red cells, up to four of other colours, the rest white."""
    places = list(range(_CELLS * _CELLS))
    cells = [0] * (_CELLS * _CELLS)
    others = stream(draw, 0) % 5
    for number in range(red + others):
        place = places.pop(stream(draw, 1, number) % len(places))
        cells[place] = 1 if number < red else 2 + stream(draw, 2, number) % 2
    return tuple(cells)


@cache
def _png(board: tuple[int, ...]) -> bytes:
    import numpy as np
    from PIL import Image

    colours = np.array(_COLOURS, dtype=np.uint8)[np.array(board).reshape(_CELLS, _CELLS)]
    file = io.BytesIO()
    Image.fromarray(colours.repeat(_SIDE, 0).repeat(_SIDE, 1)).save(file, "PNG")
    return file.getvalue()
