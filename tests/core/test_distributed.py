"""A command that has made a process group ends it, and the next one of this process starts as the first did."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from gspo_lightning.commands.compare.runs import run_once
from gspo_lightning.core.distributed import leaves_no_group
from gspo_lightning.core.errors import UserError
from tests.support.leftovers import RANK_VARIABLES, end_group_and_ranks


@pytest.fixture(autouse=True)
def cleaned_up() -> Iterator[None]:
    yield
    end_group_and_ranks()


def begin(world: int) -> None:
    """As Lightning does, which leaves it all there."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", NODE_RANK="0", LOCAL_RANK="0")
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def ranks() -> dict[str, str]:
    return {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}


@pytest.mark.parametrize(
    ("world", "of_many", "fails", "ended"),
    [
        (1, False, False, True),
        (1, False, True, True),
        (2, True, False, True),
        (2, True, True, False),  # the other rank may be in a collective
        (2, False, False, False),  # the other rank may have more to do with this one
    ],
)
def test_a_group_ends_with_its_block(world: int, of_many: bool, fails: bool, ended: bool) -> None:
    os.environ["LOCAL_RANK"] = "3"  # known before
    with contextlib.suppress(UserError), leaves_no_group(of_many=of_many):
        begin(world)
        if fails:
            raise UserError("x", "is wrong")
    assert dist.is_initialized() is not ended
    assert ranks() == {"LOCAL_RANK": "3"} if ended else len(ranks()) == 4


def test_a_group_that_was_there_stays() -> None:
    begin(1)
    before = ranks()
    with leaves_no_group():
        os.environ["LOCAL_RANK"] = "0"
    assert dist.is_initialized()
    assert ranks() == before


def test_runs_that_are_compared_on_two_ranks_start_without_those_of_the_last(tmp_path: Path) -> None:
    """The first run's second rank has ended with it."""

    def gspo(argv: list[str]) -> int:
        assert not ranks()
        begin(2)
        run = tmp_path / Path(argv[1]).stem / "version_0"
        run.mkdir(parents=True)
        (run / "summary.json").write_text("{}")
        return 0

    for name in ("a", "b"):
        assert run_once(name, name, [], configs=[], output=tmp_path, gspo=gspo) == tmp_path / name / "version_0"
    assert not dist.is_initialized()
    assert not ranks()
