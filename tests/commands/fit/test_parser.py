"""What is written is what is meant: ``1`` is one batch and ``1.0`` all of them, whatever was imported before."""

from __future__ import annotations

import typing

import pytest

from gspo_lightning.commands.fit.cli import Parser


class Limits:
    """As Lightning's Trainer, whose ``Optional[Union[int, float]]`` is this where another package said so before."""

    def __init__(self, limit: typing.Optional[typing.Union[float, int]] = None, share: float = 0.5) -> None:  # noqa: UP007, UP045
        self.limit, self.share = limit, share


@pytest.mark.parametrize(("written", "meant"), [("1", 1), ("1.0", 1.0), ("0.5", 0.5), ("null", None)])
def test_whole_numbers_stay_whole(written: str, meant: float | None) -> None:
    parser = Parser()
    parser.add_class_arguments(Limits, "trainer")
    found = parser.parse_args([f"--trainer.limit={written}", "--trainer.share=1"]).trainer
    assert (found.limit, type(found.limit)) == (meant, type(meant))
    assert type(found.share) is float
