"""Training order over several sources, or as a curriculum chooses."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose, Shuffle, permutation, stream, uniforms
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts.curricula import Curriculum, Seen, Uniform
from gspo_lightning.data.prompts.order import PromptOrder
from gspo_lightning.data.prompts.weighted import Quota, Quotas, WeightedTurns, weighted_sample

_KEPT = 8
"""Iterations whose choice is kept; rollouts may be made ahead for them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One source: its name, its weight, and the places of its prompts in the whole set."""

    name: str
    weight: float
    places: range


class MixedOrder(PromptOrder):
    """Training order that gives every source its quota of each iteration: shuffled, by weight, or by curriculum.

    Without a curriculum, any iteration is computed from its number alone; the rest of a pass over a source that cannot
    fill the next quota is skipped. With a curriculum, the choice for an iteration depends on what was observed before
    it; all ranks observe the same, and :meth:`state_dict` holds it. Sources are spread evenly over the mini-batches.

    Args:
        prompts: of all sources.
        per_iteration: prompts of an iteration over all ranks, a multiple of ``mini_batches`` times the ranks.
        mini_batches: number of mini-batches an iteration's groups are cut into.
        seed: of the run.
        parts: the sources.
        curriculum: chooses among the prompts of a source; None or ``Uniform`` takes each once a pass.
        difficulty: [n] of all prompts, NaN if a record has none; for a curriculum.
        weights: [n] of all prompts, how often each is drawn relative to the others of its source; None: equally often.

    Raises:
        UserError: a source has fewer prompts than an iteration needs of it, a prompt is so heavy that an iteration
            would need it twice, or the curriculum cannot work with the prompts.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        per_iteration: int,
        mini_batches: int,
        seed: int,
        parts: Sequence[Part],
        curriculum: Curriculum | None = None,
        difficulty: NDArray[np.float64] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(prompts, per_iteration, mini_batches, seed)
        self.sources = tuple(part.name for part in parts if part.name)
        self._parts = list(parts)
        self._quotas = Quotas([p.weight for p in parts], per_iteration, [len(p.places) for p in parts])
        for part, largest in zip(parts, self._quotas.largest(), strict=True):
            if len(part.places) < largest:
                raise UserError(
                    "data.train",
                    f"source {part.name!r} holds {len(part.places)} usable prompts, and an iteration takes {largest}",
                    fix="give it more prompts or a lower weight, or lower data.prompts_per_rollout",
                )
        self._curricula: list[Curriculum] = []
        self._seen: list[Seen] = []
        if curriculum is not None and not isinstance(curriculum, Uniform):
            difficulties = np.full(len(prompts), np.nan) if difficulty is None else difficulty
            for part in parts:
                facts = Seen(difficulties[part.places.start : part.places.stop])
                part_curriculum = copy.deepcopy(curriculum)
                try:
                    part_curriculum.begin(facts)
                except UserError as error:
                    raise error if not part.name else _of(part.name, error) from None
                self._curricula.append(part_curriculum)
                self._seen.append(facts)
        self._weights = [_unequal(weights, part.places) for part in parts]
        self._turns = [self._weighted(number) for number in range(len(parts))]
        self._chosen: dict[int, list[int]] = {}

    # the order ---------------------------------------------------------------------------------------------------

    def replacement_prompts(self, iteration: int, limit: int) -> list[Prompt]:
        """Return up to ``limit`` unused prompts of every source for this rank, to replace dead groups."""
        rank, world = rank_and_world()
        taken = set(self._choice(iteration))
        chosen: list[int] = []
        for number in range(len(self._parts)):
            others = self._others(iteration, number, taken, limit * world)
            chosen += others[rank::world][:limit]
        return [self._prompts[i] for i in chosen]

    def _number(self, iteration: int, place: int) -> int:
        return self._choice(iteration)[place]

    def _choice(self, iteration: int) -> list[int]:
        """Return the prompts of an iteration, in the order of their places over all ranks."""
        if iteration not in self._chosen:
            self._chosen[iteration] = self._arranged(iteration, self._picked(iteration))
            for old in sorted(self._chosen)[:-_KEPT]:
                del self._chosen[old]
        return self._chosen[iteration]

    def _picked(self, iteration: int) -> list[list[int]]:
        """Choose the prompts of each source for an iteration."""
        quotas = enumerate(self._quotas.of(iteration))
        if self._curricula:
            return [self._best(iteration, number, quota.count, set()) for number, quota in quotas]
        return [self._next(iteration, number, quota) for number, quota in quotas]

    def _next(self, iteration: int, number: int, quota: Quota) -> list[int]:
        places = self._parts[number].places
        turns = self._turns[number]
        if turns is not None:
            return [places[i] for i in turns.of(iteration)]
        order = Shuffle(stream(self._seed, Purpose.PROMPT_ORDER, number, quota.number), len(places))
        return [places[i] for i in order[quota.offset : quota.offset + quota.count]]

    def _best(self, iteration: int, number: int, count: int, taken: set[int]) -> list[int]:
        """Let the curriculum of a source choose among the prompts not yet taken."""
        source = self._parts[number]
        facts = self._seen[number]
        curriculum = self._curricula[number]
        free = np.ones(len(facts), dtype=bool)
        free[[i - source.places.start for i in taken if i in source.places]] = False
        count = min(count, int(free.sum()))
        if not count:
            return []
        facts.iteration = iteration
        base = stream(self._seed, Purpose.CURRICULUM, number, iteration)
        chosen = curriculum.choose(facts, free, count, uniforms(base, torch.arange(len(facts))).numpy())
        places = [int(i) for i in np.asarray(chosen).ravel()]
        all_free = all(0 <= i < len(facts) and free[i] for i in places)
        if len(places) != count or len({*places}) != count or not all_free:
            raise UserError(
                f"{type(curriculum).__name__}.choose",
                f"returned {len(places)} places for {count} prompts, or one of them twice, or one that is not free",
                fix="return count different places that are free",
            )
        return [source.places[i] for i in places]

    def _others(self, iteration: int, number: int, taken: set[int], count: int) -> list[int]:
        """Return prompts of a source that are not taken."""
        if self._curricula:
            return self._best(iteration, number, count, taken)
        places = self._parts[number].places
        weights = self._weights[number]
        base = stream(self._seed, Purpose.RESAMPLING, iteration, number)
        order: Sequence[int] | NDArray[np.int64] = Shuffle(base, len(places))
        if weights is not None:
            order = weighted_sample(weights, uniforms(base, torch.arange(len(places))).numpy())
        ordered = (places[int(order[place])] for place in range(len(places)))
        others = (number for number in ordered if number not in taken)
        return list(itertools.islice(others, count))

    def _weighted(self, number: int) -> WeightedTurns | None:
        """Return the order of a source whose prompts have different weights; None if all weights are equal."""
        part = self._parts[number]
        weights = self._weights[number]
        if weights is None:
            return None
        share = self._quotas.share(number)
        heaviest = int(weights.argmax())
        relative = math.fsum(weights / weights[heaviest])  # the sum itself may overflow
        if share > relative * (1 + 1e-9):
            total = relative * float(weights[heaviest])
            where = getattr(self._prompts, "where", str)(self._prompts[part.places[heaviest]].id)
            raise UserError(
                "data.train",
                f"{where}: 'weight' is {weights[heaviest]:g} of {total:g} in all, and an iteration takes "
                f"{float(share):g} prompts",
                fix="lower it, or data.prompts_per_rollout: no iteration takes a prompt twice",
            )
        base = stream(self._seed, Purpose.PROMPT_ORDER, number)
        return WeightedTurns(weights, base, lambda iteration: self._quotas.of(iteration)[number].count)

    def _arranged(self, iteration: int, picked: Sequence[Sequence[int]]) -> list[int]:
        """Arrange an iteration: every mini-batch gets its share of every source, in random order."""
        # each source is spread evenly over [0, 1), so every stretch of the sorted whole holds its share of each
        placed: list[tuple[float, int, int]] = []
        for number, prompts in enumerate(picked):
            shuffled = permutation(stream(self._seed, Purpose.MIXTURE, iteration, number), len(prompts)).tolist()
            placed += [((turn + 0.5) / len(prompts), number, prompts[i]) for turn, i in enumerate(shuffled)]
        order = [prompt for _, _, prompt in sorted(placed)]
        size = self._size // self._mini_batches
        arranged: list[int] = []
        for mini_batch in range(self._mini_batches):
            shuffled = permutation(stream(self._seed, Purpose.MIXTURE, iteration, -1 - mini_batch), size).tolist()
            arranged += [order[mini_batch * size + i] for i in shuffled]
        return arranged

    # what the curriculum learns ----------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """True with a curriculum: it needs the results of sampled groups."""
        return bool(self._curricula)

    def observe(self, iteration: int, rates: Mapping[int, float]) -> None:
        """Record the mean accuracy (NaN: unknown) of every group that an iteration sampled, by prompt id."""
        if not self._curricula:
            return
        place_of = getattr(self._prompts, "place_of", int)
        rates = {place_of(id_): rate for id_, rate in rates.items()}
        for part, facts, curriculum in zip(self._parts, self._seen, self._curricula, strict=True):
            places = np.array(sorted(i for i in rates if i in part.places), dtype=np.int64)
            part_rates = np.array([rates[int(i)] for i in places], dtype=np.float64)
            places -= part.places.start
            measured = ~np.isnan(part_rates)
            facts.iteration = iteration
            facts.rate[places[measured]] = part_rates[measured]
            facts.asked[places] = iteration
            curriculum.learn(facts, places, part_rates)

    def state_dict(self) -> dict[str, Any]:
        """Return the curricula's memory of the prompts asked so far; tensors and primitives only."""
        curricula = [_state(facts, curriculum) for facts, curriculum in zip(self._seen, self._curricula, strict=True)]
        return super().state_dict() | {"curricula": curricula}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._chosen = {}
        for facts, curriculum, saved in zip(self._seen, self._curricula, state.get("curricula", ()), strict=False):
            valid = saved["places"] < len(facts)  # all of them, unless a run goes on with other prompts
            places = saved["places"][valid].numpy()
            facts.rate[places] = saved["rate"][valid].numpy()
            facts.asked[places] = saved["asked"][valid].numpy()
            if saved["kind"] == type(curriculum).__name__:
                for name, values in saved["per_prompt"].items():
                    curriculum.per_prompt[name][places] = values[valid].numpy()
                curriculum.values.update(saved["values"])


def _of(source: str, error: UserError) -> UserError:
    return UserError(error.field, f"source {source!r}: {error.problem}", fix=error.fix)


def _unequal(weights: NDArray[np.float64] | None, places: range) -> NDArray[np.float64] | None:
    """Return the weights of a source; None if they are all equal."""
    part_weights = None if weights is None else weights[places.start : places.stop]
    return None if part_weights is None or part_weights.min() == part_weights.max() else part_weights


def _state(facts: Seen, curriculum: Curriculum) -> dict[str, Any]:
    places = np.flatnonzero(facts.asked >= 0)
    return {
        "kind": type(curriculum).__name__,
        "places": torch.from_numpy(places),
        "rate": torch.from_numpy(facts.rate[places]),
        "asked": torch.from_numpy(facts.asked[places]),
        "per_prompt": {name: torch.from_numpy(values[places]) for name, values in curriculum.per_prompt.items()},
        "values": dict(curriculum.values),
    }
