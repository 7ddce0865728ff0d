"""What a rollout source returns is checked, whoever wrote it; each breach has one message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import PluginError
from gspo_lightning.core.rows import RowSpan
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.rollouts import GroupedSampler, ResponsePrefix
from gspo_lightning.rollouts.contract import check_group, check_groups, check_pieces

PROMPTS = [Prompt(3, "a", (1, 2)), Prompt(7, "b", (4,))]
SAMPLING = SamplingParams(3)


class Mine(GroupedSampler):
    """A plug-in's source: not of the package."""

    def generate(self, *_: Any, **__: Any) -> Any:
        """Nothing."""

    def extend(self, *_: Any, **__: Any) -> Any:
        """Nothing."""


def rollout(prompt: Prompt, sample: int, **changes: Any) -> Rollout:
    tokens = torch.tensor([5, 6, 1])
    made = Rollout(prompt, sample, tokens, torch.tensor([-0.5, -1.0, 0.0]), tokens > 0, FinishReason.STOP, 0, "xy")
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def groups() -> list[list[Rollout]]:
    return [[rollout(p, k) for k in range(2)] for p in PROMPTS]


def changed(**changes: Any) -> list[list[Rollout]]:
    found = groups()
    found[1][1] = rollout(PROMPTS[1], 1, **changes)
    return found


BREACHES: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "returned None"),
    "an iterator": (lambda: iter(groups()), "of type list_iterator"),
    "too few groups": (lambda: groups()[:1], "returned 1 groups for 2 prompts"),
    "too many groups": (lambda: groups() * 2, "returned 4 groups for 2 prompts"),
    "another order": (lambda: groups()[::-1], "a response to prompt 7 where one to prompt 3 belongs"),
    "a flat list": (lambda: groups()[0], "of type Rollout as a group"),
    "too few responses": (lambda: [g[:1] for g in groups()], "1 responses to a prompt instead of 2"),
    "texts": (lambda: [["a", "b"]] * 2, "of type str as a response"),
    "a long row": (
        lambda: changed(rows=RowSpan.consecutive([(4,), (2, 3, 4)], [1, 2])),
        "a row 1 of 5 tokens where 4 are allowed",
    ),
    "a negative context": (lambda: changed(rows=(RowSpan((-4,), 0, 3),)), "with a negative token id"),
    "routes of one row": (
        lambda: changed(rows=RowSpan.consecutive([(4,), (2,)], [1, 2]), routes=torch.zeros(4, 1, 2)),
        r"with routes of shape (4, 1, 2)",
    ),
    "samples swapped": (lambda: [g[::-1] for g in groups()], "sample 1 of prompt 3 in the place of sample 0"),
    "a sample twice": (lambda: [[g[0], g[0]] for g in groups()], "sample 0 of prompt 3 in the place of sample 1"),
    "mixed prompts": (
        lambda: [[a, b] for (a, _), (_, b) in (groups(), groups()[::-1])],
        "a response to prompt 7 where",
    ),
    "another type of ids": (lambda: changed(token_ids=torch.tensor([5, 6, 1], dtype=torch.int32)), "torch.int32"),
    "padding": (lambda: changed(token_ids=torch.tensor([5, 6, -100])), "7/1 (prompt/sample) with a negative token id"),
    "NaN": (lambda: changed(logprobs=torch.tensor([-1.0, float("nan"), 0.0])), "that are not finite"),
    "infinity": (lambda: changed(logprobs=torch.tensor([-1.0, float("-inf"), 0.0])), "that are not finite"),
    "probabilities": (lambda: changed(logprobs=torch.tensor([0.6, 0.2, 1.0])), "a log-probability above 0"),
    "whole numbers": (lambda: changed(logprobs=torch.tensor([-1, -1, 0])), "that are not finite"),
    "too long": (lambda: changed(token_ids=torch.tensor([5, 6, 7, 1])), "with 4 tokens where 3 are allowed"),
    "a reason of its own": (lambda: changed(finish_reason="stop"), "with the finish_reason 'stop'"),
    "an end that is none": (lambda: changed(finish_reason=FinishReason.CUT), "that has not ended"),
    "experts of the response alone": (lambda: changed(routes=torch.zeros(2, 4, 2)), "with routes of shape (2, 4, 2)"),
    "experts without layers": (lambda: changed(routes=torch.zeros(3, 2)), "with routes of shape (3, 2)"),
    "bytes": (lambda: changed(text=b"xy"), "of type bytes as text"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_named_with_file_line_class_and_method(breach: str) -> None:
    make, words = BREACHES[breach]
    with pytest.raises(PluginError) as caught:
        check_groups(Mine(), make(), PROMPTS, 2, SAMPLING)
    first, last = str(caught.value).splitlines()
    line = Mine.generate.__code__.co_firstlineno
    assert words in first
    assert all(f"test_contract_checks.py:{line}, in Mine.generate" in text for text in (first, last))
    assert "; expected: " in last


def test_valid_groups_pass_the_contract_check() -> None:
    found = groups()
    assert check_groups(Mine(), tuple(map(tuple, found)), PROMPTS, 2, SAMPLING) == found
    without = changed(logprobs=None)
    assert check_groups(Mine(), without, PROMPTS, 2, SAMPLING) == without
    routed = changed(routes=torch.zeros(3, 4, 2))  # a prompt of one token, and all but the last of the response
    assert check_groups(Mine(), routed, PROMPTS, 2, SAMPLING) == routed
    rounded = changed(logprobs=torch.tensor([1e-7, -1.0, 0.0]))
    assert check_groups(Mine(), rounded, PROMPTS, 2, SAMPLING) == rounded


def test_a_built_in_source_reports_what_the_model_says() -> None:
    """NaN of a model is found where it is stopped and dumped; see nonfinite."""
    found = changed(logprobs=torch.tensor([-1.0, float("nan"), 0.0]))
    assert check_groups(GroupedSampler(), found, PROMPTS, 2, SAMPLING) == found


def test_a_group_alone_is_of_one_prompt() -> None:
    (a, _), (c, d) = groups()
    assert check_group(Mine(), [c, d], 2, SAMPLING) == [c, d]
    with pytest.raises(PluginError, match="a response to prompt 7 where one to prompt 3"):
        check_group(Mine(), [a, d], 2, SAMPLING)


def test_pieces_answer_their_beginnings() -> None:
    rows = [ResponsePrefix(p, k, p.token_ids, 0, 3) for p in PROMPTS for k in range(2)]
    pieces = [r for g in groups() for r in g]
    pieces[0] = rollout(PROMPTS[0], 0, finish_reason=FinishReason.CUT)
    assert check_pieces(Mine(), pieces, rows) == pieces
    later = [dataclasses.replace(rows[0], context=(1, 2, 8, 9)), *rows[1:]]
    pieces[0].routes = torch.zeros(6, 4, 2)
    assert check_pieces(Mine(), pieces, later) == pieces
    short = [dataclasses.replace(rows[0], token_budget=2), *rows[1:]]
    for wrong, asked, words in (
        (pieces[:-1], rows, "3 pieces for 4 beginnings"),
        (pieces[::-1], rows, "response 7/1 (prompt/sample) in the place of 3/0"),
        (pieces, short, "3 tokens where 2 are allowed"),
        (pieces, rows, "with routes of shape (6, 4, 2)"),
        ([rollout(PROMPTS[0], 0, rows=(RowSpan((4,), 0, 3),)), *pieces[1:]], rows, "a piece of several rows"),
    ):
        with pytest.raises(PluginError) as caught:
            check_pieces(Mine(), wrong, asked)
        assert words in str(caught.value)
        assert "in Mine.extend" in str(caught.value)
