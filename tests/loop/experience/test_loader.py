"""A checkpoint holds of the buffer what is still to be trained on, and goes on with exactly that."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.loader import ExperienceLoader, part_of
from gspo_lightning.policy.packing.batches import make_micro_batch

BATCHES = 4


def roll_out(iteration: int) -> Experience:
    """Four mini-batches whose tokens say which they are."""
    batches = []
    for i in range(BATCHES):
        ids = torch.tensor([10 * iteration + i] * 3)
        mask = torch.ones(3, dtype=torch.bool)
        row = Rollout(Prompt(i, "", (1, 2)), 0, ids, torch.zeros(3), mask, FinishReason.STOP, 0, reward=1.0)
        batches.append(MiniBatch([make_micro_batch([row])], index=i, iteration=iteration))
    examples = [{"prompt": "a prompt", "completion": "an answer"}]
    return Experience(batches, {"reward/mean": 1.0}, examples, {"0/0": ["hash", 1.0]}, {"length": [3.0]})


def loader(epochs: int) -> ExperienceLoader:
    return ExperienceLoader(roll_out, BATCHES, epochs, seed=7)


def name(batch: MiniBatch) -> tuple[int, int, int]:
    """Its number in the iteration, the iteration, and what it holds."""
    return batch.index, batch.iteration, int(batch.micro_batches[0].input_ids[0, -1])


def stopped(epochs: int, iteration: int, trained: int) -> dict[str, Any]:
    """What a checkpoint holds after so many updates of an iteration, read back from one."""
    made = loader(epochs)
    for _ in range(iteration + 1):
        for batch in made:
            if (made.iteration, batch.index) == (iteration, trained):
                break
            made.mark_trained()
    file = io.BytesIO()
    torch.save(made.position(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state | {"bytes": file.getbuffer().nbytes}


@pytest.mark.parametrize(("epochs", "trained"), [(e, t) for e in (1, 2, 3) for t in range(BATCHES * e + 1)])
def test_resumed_loader_yields_the_remaining_mini_batches(epochs: int, trained: int) -> None:
    whole = [name(batch) for batch in list(itertools.chain.from_iterable(handed(loader(epochs), 3)))]
    resumed = loader(epochs)
    resumed.go_to(stopped(epochs, 1, trained))
    done = BATCHES * epochs + trained
    found = [name(batch) for batch in itertools.chain.from_iterable(handed(resumed, 3))]
    assert found[: len(whole) - done] == whole[done:]
    assert resumed.spent


def handed(made: ExperienceLoader, iterations: int) -> list[list[MiniBatch]]:
    found = []
    for _ in range(iterations):
        found.append([])
        for batch in made:
            found[-1].append(batch)
            made.mark_trained()
    return found


@pytest.mark.parametrize(
    ("epochs", "trained", "kept"), [(1, 0, 4), (1, 1, 3), (1, 3, 1), (2, 3, 4), (2, 4, 4), (2, 7, 1)]
)
def test_checkpoint_omits_mini_batches_after_their_last_epoch(epochs: int, trained: int, kept: int) -> None:
    experience = stopped(epochs, 0, trained)["experience"]
    assert len(experience["mini_batches"]) == BATCHES  # each in its place
    assert sum(batch is not None for batch in experience["mini_batches"]) == kept
    assert experience["metrics"] == {"reward/mean": 1.0}  # logged with every update
    assert experience["rewards"] == {"0/0": ["hash", 1.0]}  # for a dump of any
    assert len(experience["examples"]) == len(experience["distributions"]) == (trained == 0)  # logged with the first


def test_a_spent_buffer_is_not_written() -> None:
    state = stopped(2, 1, 2 * BATCHES)
    assert state["experience"] == {
        "mini_batches": [],
        "metrics": {},
        "examples": [],
        "rewards": {},
        "distributions": {},
        "recorded": "[]",
        "media": {"files": {}, "rows": []},
    }
    assert state["bytes"] < 2000
    assert stopped(2, 1, 3)["bytes"] > 4 * state["bytes"]
    assert part_of([state, state], 5, 8) is state  # the number of ranks may change there


def test_a_checkpoint_from_before_has_all_of_it_and_goes_on_the_same() -> None:
    epochs, trained = 2, 5
    state = stopped(epochs, 0, trained)
    whole = roll_out(0).state_dict(range(BATCHES), begun=False)
    made, of_old = loader(epochs), loader(epochs)
    made.go_to(state)
    of_old.go_to(state | {"experience": whole})
    assert [name(batch) for batch in made] == [name(batch) for batch in of_old]
    of_old.go_to({"iteration": 0, "trained": epochs * BATCHES, "epochs": epochs, "experience": whole})
    assert of_old.spent
    assert name(next(iter(of_old))) == (0, 1, 10)


def test_ranks_do_not_change_in_the_middle_of_an_iteration() -> None:
    middle = stopped(1, 0, 3)
    with pytest.raises(UserError, match="written by 2 ranks in the middle of an iteration, this run has 3"):
        part_of([middle, middle], 0, 3)
