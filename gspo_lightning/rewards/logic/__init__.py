"""Logic puzzles: generators with proven solutions, and checkers with parsers of their own."""

from __future__ import annotations

from gspo_lightning.rewards.logic.countdown import Countdown
from gspo_lightning.rewards.logic.family import Family, Grade, Puzzle
from gspo_lightning.rewards.logic.knights import Knights
from gspo_lightning.rewards.logic.puzzle import FAMILIES, LogicPuzzle
from gspo_lightning.rewards.logic.sudoku import Sudoku
from gspo_lightning.rewards.logic.zebra import Zebra

__all__ = ["FAMILIES", "Countdown", "Family", "Grade", "Knights", "LogicPuzzle", "Puzzle", "Sudoku", "Zebra"]
