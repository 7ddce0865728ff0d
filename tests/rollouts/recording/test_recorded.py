"""Recorded responses: read exactly, refused where they cannot stand for samples of the policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, Recorded
from gspo_lightning.rollouts.recording.records import check_row, record
from tests.rollouts.replayed import write

SAMPLING = SamplingParams(8, stop_token_ids=(1, 5, 9, 20))


def draws(iteration: int) -> Draws:
    return Draws.of(3, Purpose.TRAIN_SAMPLING, iteration)


def sample(policy: Policy, prompts: Sequence[Prompt], iteration: int, group_size: int = 3) -> list[Rollout]:
    groups = GroupedSampler().generate(
        policy, prompts, group_size=group_size, sampling=SAMPLING, draws=draws(iteration), version=4 * iteration
    )
    return [r for group in groups for r in group]


@pytest.fixture
def rows(policy: Policy, prompts: list[Prompt]) -> list[dict[str, Any]]:
    """Two iterations over the same prompts, three responses each."""
    return [record(r, SAMPLING, i) for i in (0, 1) for r in sample(policy, prompts, i)]


def replay(
    file: Path, policy: Policy, prompts: Sequence[Prompt], iteration: int = 0, group_size: int = 3, **options: Any
) -> list[list[Rollout]]:
    source = Recorded(str(file), **options)
    source.open(0)
    return source.generate(
        policy, prompts, group_size=group_size, sampling=SAMPLING, draws=draws(iteration), version=99
    )


def ids(groups: Sequence[Sequence[Rollout]]) -> list[list[int]]:
    return [r.token_ids.tolist() for group in groups for r in group]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_each_iteration_gets_its_own_responses_bit_by_bit(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path, suffix: str
) -> None:
    rows[4]["response_mask"][0] = False  # a token that the policy did not choose
    file = write(tmp_path / f"all{suffix}", rows)
    for iteration in (1, 0):
        wanted = sample(policy, prompts, iteration)
        found = [r for g in replay(file, policy, prompts[::-1], iteration)[::-1] for r in g]
        for new, old in zip(found, wanted, strict=True):
            assert (new.prompt, new.sample, new.text) == (old.prompt, old.sample, old.text)
            assert (new.finish_reason, new.policy_version) == (old.finish_reason, 4 * iteration)
            assert torch.equal(new.token_ids, old.token_ids)
            assert old.logprobs is not None
            assert new.logprobs is not None
            assert torch.equal(new.logprobs, old.logprobs)
    first = [r for g in replay(file, policy, prompts) for r in g]
    assert [r.response_mask.all().item() for r in first] == [i != 4 for i in range(12)]


def test_a_folder_is_read_as_one_recording_and_rows_without_an_iteration_serve_all(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()
    write(folder / "000000.jsonl", rows[:12])
    write(folder / "000001.parquet", rows[12:])
    assert ids(replay(folder, policy, prompts, 1)) == [row["completion_ids"] for row in rows[12:]]
    assert ids(replay(folder, policy, prompts, 0, group_size=2)) == [r["completion_ids"] for r in rows[:12] if
                                                                     not r["id"].endswith("/2")]  # fmt: skip
    anytime = write(tmp_path / "anytime.jsonl", [row | {"iteration": None} for row in rows[:12]])
    for iteration in (0, 7):
        assert ids(replay(anytime, policy, prompts, iteration)) == [row["completion_ids"] for row in rows[:12]]


def test_by_prompt_the_recorded_groups_come_in_turn_whatever_the_prompts_number(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = write(tmp_path / "all.jsonl", rows)
    renumbered = [Prompt(i, p.text, p.token_ids, {"answer": "new"}) for i, p in enumerate(prompts)]
    for iteration in range(4):
        start = 12 * (iteration % 2)
        groups = replay(file, policy, renumbered, iteration, match="prompt")
        assert ids(groups) == [row["completion_ids"] for row in rows[start : start + 12]]
        assert [g[0].prompt for g in groups] == renumbered


def test_missing_logprobs_are_the_policys_own_on_request(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows[0]["logprobs"] = None
    del rows[7]["logprobs"]
    file = write(tmp_path / "some.jsonl", rows)
    with pytest.raises(UserError, match=r"row 1: has no logprobs"):
        replay(file, policy, prompts)
    groups = replay(file, policy, prompts, missing_logprobs="recompute")
    for rollout in (r for g in groups for r in g):
        with torch.no_grad():
            wanted = policy(make_micro_batch([rollout]))[0][0]
        assert rollout.logprobs is not None
        torch.testing.assert_close(rollout.logprobs, wanted, atol=1e-6, rtol=0)
        assert not rollout.logprobs.requires_grad


def test_recorded_rewards_come_with_their_parts(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    verdict = {"reward_parts": {"a": 1.0, "b": None}, "reward_statuses": {"a": "ok", "b": "timeout"}}
    rows[0] |= {"reward": 0.25, **verdict}
    rows[1] |= {"reward": 2, "reward_parts": {}, "reward_statuses": {}}
    rows[2] |= {"reward": None, "reward_parts": None}
    file = write(tmp_path / "rewards.jsonl", rows[:3])
    assert all(r.reward is None and not r.reward_statuses for r in replay(file, policy, prompts[:1])[0])
    first, second, third = replay(file, policy, prompts[:1], rewards="recorded")[0]
    assert (first.reward, first.reward_parts, first.reward_statuses) == (0.25, *verdict.values())
    assert (second.reward, second.reward_parts, second.reward_statuses) == (2.0, {"recorded": 2.0}, {"recorded": "ok"})
    assert (third.reward, third.reward_statuses) == (None, {"recorded": "missing"})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prompt_ids": None}, "prompt_ids is None, but must be a list of token ids"),
        ({"completion_ids": []}, "completion_ids is []"),
        ({"completion_ids": [3, -1]}, "completion_ids is [3, -1]"),
        ({"completion_ids": [3, 2.5]}, "completion_ids is [3, 2.5]"),
        ({"logprobs": [-1.0]}, "logprobs is [-1.0], but must be 3 finite"),
        ({"logprobs": [-1.0, float("nan"), -1.0]}, "logprobs is [-1.0, nan, -1.0]"),
        ({"logprobs": [-1.0, 0.5, -1.0]}, "logprobs is [-1.0, 0.5, -1.0]"),
        ({"response_mask": [True, True]}, "response_mask is [True, True], but must be 3 times"),
        ({"reward": "good"}, "reward is 'good', but must be a finite number or null"),
        ({"finish_reason": "tired"}, "finish_reason is 'tired', but must be one of stop, length"),
        ({"completion_ids": [3, 4, 4000]}, "token id 4000, but the model's vocabulary has"),
        ({"completion_ids": [3] * 9, "logprobs": [-1.0] * 9}, "has 9 tokens, more than data.max_response_tokens = 8"),
        ({"sampling": {"temperature": 0.0}}, "sampled with temperature 0.0, but the run uses 1.0"),
        ({"sampling": {"temperature": 1.0, "top_p": 0.9}}, "sampled with top_p 0.9"),
        ({"prompt_ids": [4, 5]}, "has no responses to prompt 10 ('7+5*3-4:') for iteration 0"),
        ({"iteration": 5}, "for iteration 0"),
        (
            {"row_ends": [1, 2], "contexts": [[4], [5]]},
            "row_ends is [1, 2], but must be rising positions that end at 3",
        ),
        ({"row_ends": [2, 2, 3], "contexts": [[4]] * 3}, "row_ends is [2, 2, 3]"),
        ({"row_ends": "13"}, "row_ends is '13'"),
        ({"row_ends": [1, 3], "contexts": [[4]]}, "contexts is [[4]], but must be a list of token ids for each of"),
        ({"row_ends": [1, 3], "contexts": [[4], []]}, "contexts is [[4], []]"),
        ({"row_ends": [1, 3], "contexts": [[4], [4000]]}, "token id 4000, but the model's vocabulary has"),
        ({"row_ends": [1, 3], "contexts": [[4], [5] * 40]}, "more than data.max_response_tokens = 8"),
    ],
)
def test_recorded_row_that_cannot_be_trained_on_is_refused_by_field(
    policy: Policy, prompts: list[Prompt], tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    row = {"id": "10/0", "prompt_ids": list(prompts[0].token_ids), "completion_ids": [3, 4, 1], "logprobs": [-1.0] * 3}
    file = write(tmp_path / "one.jsonl", [row])
    assert ids(replay(file, policy, prompts[:1], group_size=1)) == [[3, 4, 1]]
    write(file, [row | {"contexts": ["a column of the prompt"]}])
    assert ids(replay(file, policy, prompts[:1], group_size=1)) == [[3, 4, 1]]
    write(file, [row | change])
    with pytest.raises(UserError) as error:
        replay(file, policy, prompts[:1], group_size=1)
    assert complaint in str(error.value)


def test_a_short_group_is_refused(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = write(tmp_path / "short.jsonl", rows[:11])
    with pytest.raises(UserError, match=r"prompt 19 has 2 recorded responses, but data.group_size is 3"):
        replay(file, policy, prompts)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"{}\n[1]\n", "prompt_ids is None"), (b"[1]\n", ":1: is a JSON list"), (b'{"a": \n', ":1: is not JSON"),
     (b"\xff\xfe\n", ":1: is not JSON"), (b"\n\n", "holds no rows")],
)  # fmt: skip
def test_files_that_are_no_recording(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError) as error:
        Recorded(str(file)).open(0)
    assert complaint in str(error.value)


def test_places_that_hold_no_recording(tmp_path: Path) -> None:
    for place, complaint in [("gone.jsonl", "does not exist"), ("", "neither .jsonl nor .parquet files")]:
        with pytest.raises(UserError, match=complaint):
            Recorded(str(tmp_path / place)).open(0)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match="is not a Parquet file"):
        Recorded(str(tmp_path / "x.parquet")).open(0)
    (tmp_path / "x.csv").write_bytes(b"a,b")
    with pytest.raises(UserError, match=r"neither \.jsonl nor \.parquet"):
        Recorded(str(tmp_path / "x.csv")).open(0)


def test_lines_are_found_again_by_their_place_in_bytes(
    policy: Policy, prompts: list[Prompt], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows[0]["completion"] = "zwölf €"
    file = write(tmp_path / "all.jsonl", rows)
    file.write_text("\n" + file.read_text().replace("\n", "\n\n"))
    groups = replay(file, policy, prompts)
    assert ids(groups) == [row["completion_ids"] for row in rows[:12]]
    assert groups[0][0].text == "zwölf €"


@pytest.mark.parametrize("name", ["iteration", "policy_version"])
@pytest.mark.parametrize("value", [math.inf, 10**400, 0.5, "1"])
def test_a_count_beyond_integers_is_refused_with_its_row_and_field(name: str, value: object) -> None:
    row = {"prompt_ids": [1], "completion_ids": [2], "reward": 1.0, name: value}
    with pytest.raises(UserError, match=rf"FILE, row 3: {name} is .*, not a whole number"):
        check_row(row, "FILE, row 3")
