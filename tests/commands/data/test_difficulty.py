"""Pass rates: from recorded rollouts, and by a model, interrupted or not; what ``fit`` says about its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning import cli
from gspo_lightning.commands.data.pass_counts import PassCount
from gspo_lightning.commands.data.sampling import _Journal, _pass_count
from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask
from tests import ROOT
from tests.commands.data.files import data, read, write
from tests.loop.advantages.test_shaping import rollout

QUICKSTART = ROOT / "configs" / "quickstart.yaml"
PROMPTS = 80


def test_recorded_rollouts_are_counted_by_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": i, "prompt": prompt, "x": [1, {"y": 2.50}]} for i, prompt in enumerate(["a", "b", "c", "d"])]
    source = write(tmp_path / "a.jsonl", records)
    rows = [("a", 1.0), ("a", 0.5), ("b", 1.0), ("b", 0.7 + 0.2 + 0.1), ("b", None), ("c", None)]
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for n, part in enumerate((rows[:3], rows[3:])):
        lines = [{"prompt": p, "reward": r, "reward_parts": {"correct": r, "bonus": 0.0}} for p, r in part]
        write(folder / f"{n}.jsonl", lines)
    data("difficulty", "--input", source, "--recorded", folder, "--output", tmp_path / "b.jsonl")
    found = read(tmp_path / "b.jsonl")
    assert [r["pass_rate"] for r in found] == [0.5, 1.0, None, None]
    assert [r["pass_samples"] for r in found] == [2, 2, 0, 0]
    assert [{k: r[k] for k in ("id", "prompt", "x")} for r in found] == records
    # Beta(1.5, 1.5) and Beta(2.5, 0.5), quantiles of SciPy 1.17
    assert (found[0]["pass_rate_low"], found[0]["pass_rate_high"]) == (0.0608, 0.9392)
    assert found[1]["pass_rate_low"] == 0.3332
    data("difficulty", "--input", source, "--recorded", folder, "--reward", "bonus", "--output", tmp_path / "c.jsonl")
    assert [r["pass_rate"] for r in read(tmp_path / "c.jsonl")] == [0.0, 0.0, 0.0, None]
    data(
        "difficulty", "--input", source, "--recorded", folder, "--reward", "x", "--output", tmp_path / "d.jsonl", code=2
    )  # fmt: skip
    assert "0.jsonl:1: has no reward 'x'; it has correct, bonus" in capsys.readouterr().err


def test_sampled_responses_pass_for_the_rewards_that_recorded_ones_do() -> None:
    """A reward of 1 but for rounding is a pass, as in :func:`test_recorded_rollouts_are_counted_by_prompt`."""
    group = [rollout(reward, correct=reward) for reward in (0.7 + 0.2 + 0.1, 0.99, None)]
    assert _pass_count(group, "correct") == PassCount(1, 2)
    assert _pass_count(group, "of_no_reward") == PassCount(1, 2)


def test_a_file_of_rollouts_is_not_counted_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.jsonl", [{"prompt": "a"}])
    (tmp_path / "rollouts").mkdir()
    rollouts = write(tmp_path / "rollouts" / "0.jsonl", [{"prompt": "a", "reward": 1.0}])
    (tmp_path / "link.jsonl").hardlink_to(rollouts)
    for again in (rollouts, tmp_path / "rollouts" / ".." / "rollouts" / "0.jsonl", tmp_path / "link.jsonl"):
        words = ("--recorded", tmp_path / "rollouts", again, "--output", tmp_path / "b.jsonl")
        data("difficulty", "--input", source, *words, code=2)
        assert f"--recorded: {again} is given twice" in capsys.readouterr().err
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize("content", ["notes\n", "[1]\n", "{}\n[1]\n", '{"inputs": 1}\n7\n'])
def test_a_journal_that_is_none_is_not_written_to(content: str, tmp_path: Path) -> None:
    file = tmp_path / "b.jsonl.progress.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=r"is no journal of this command|begun for another"):
        _Journal(file, {"inputs": "x"})
    assert file.read_text() == content


def test_parquet_gets_columns_of_its_own(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", [{"prompt": "a", "pass_rate": "old"}, {"prompt": "b", "pass_rate": "old"}])
    rollouts = write(tmp_path / "r.jsonl", [{"prompt": "a", "reward": 1}])
    data("difficulty", "--input", source, "--recorded", rollouts, "--output", tmp_path / "b.parquet")
    found = read(tmp_path / "b.parquet")
    assert [(r["prompt"], r["pass_rate"], r["pass_samples"]) for r in found] == [("a", 1.0, 1), ("b", None, 0)]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    records = ChainTask(split="held_out", size=PROMPTS).records()
    return write(tmp_path / "chain.jsonl", [{"id": i, **record} for i, record in enumerate(records)])


@pytest.fixture
def words(tmp_path: Path, chain: Path) -> list[Any]:
    """An untrained tiny model, and a reward that half of its answers earn."""
    (tmp_path / "even_letter.py").write_text(
        "from gspo_lightning.rewards import Reward\n\n\n"
        "class EvenLetter(Reward):\n"
        "    def score(self, completion: str) -> float:\n"
        "        return float(sum(map(ord, completion)) % 2 == 0)\n"
    )
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(
        f"plugins: [{tmp_path / 'even_letter.py'}]\n"
        "model: {cold_start: null}\n"
        "data: {rewards: {correct: EvenLetter}, max_response_tokens: 4, reward_workers: 1}\n"
    )
    config = [f"--config={file}" for file in (QUICKSTART, overlay)]
    return [*config, "--input", chain, "--samples=8", f"--trainer.default_root_dir={tmp_path / 'runs'}"]


@pytest.mark.thorough
def test_an_interrupted_count_goes_on_to_the_same_rates(
    words: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gspo_lightning.commands.data.sampling import _Journal

    data("difficulty", *words, "--output", tmp_path / "whole.jsonl")
    whole = read(tmp_path / "whole.jsonl")
    rates = [record["pass_rate"] for record in whole]
    assert len(set(rates)) > 3
    assert all(8 * rate == int(8 * rate) for rate in rates)
    assert 0.3 < sum(rates) / PROMPTS < 0.7
    add, calls = _Journal.add, []

    def interrupted(self: _Journal, pass_counts: Any) -> None:
        add(self, pass_counts)
        calls.append(len(pass_counts))
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(_Journal, "add", interrupted)
    target = tmp_path / "parts.jsonl"
    data("difficulty", *words, "--output", target, code=130)
    monkeypatch.undo()
    assert not target.exists()
    journal = tmp_path / "parts.jsonl.progress.jsonl"
    with journal.open("a") as file:
        file.write("[79, 8")  # a line that a kill cut off
    data("difficulty", *words, "--output", target, "--samples=4", code=2)
    assert "was begun for another samples" in capsys.readouterr().err
    data("difficulty", *words, "--output", target)
    assert f"goes on behind {sum(calls)} prompts" in capsys.readouterr().out
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not journal.exists()


@pytest.mark.thorough
def test_fit_says_what_its_file_is(chain: Path, tmp_path: Path, capfd: Any) -> None:
    with chain.open("a") as file:
        file.write(json.dumps({"prompt": "1+2+3+4:", "answer": "0"}) + "\n")
        file.write(json.dumps({"prompt": "1+2+3+4:", "answer": "0"}) + "\n")
    bench = write(tmp_path / "bench.jsonl", [{"prompt": "What is the capital of France?"}])
    clean = tmp_path / "clean.jsonl"
    data("decontaminate", "--input", chain, "--against", bench, "--output", clean)
    fit = [
        "fit", f"--config={QUICKSTART}", "--model.cold_start=null", "--data.reward_workers=1", "--data.val=null",
        "--trainer.max_epochs=0", f"--trainer.default_root_dir={tmp_path / 'runs'}",
    ]  # fmt: skip

    def said(file: Path) -> list[str]:
        capfd.readouterr()
        assert cli.main([*fit, f"--data.train={file}"]) == 0
        lines = "".join(capfd.readouterr()).splitlines()
        return [line.removeprefix(f"data.train: {file.name}: ") for line in lines if line.startswith("data.train:")]

    assert said(chain) == [
        f"{PROMPTS + 2} prompts of 8 to 8 tokens, median 8",
        "1 prompts repeat another one exactly (gspo data dedup)",
        "not checked for leaks from benchmarks (gspo data decontaminate)",
    ]
    assert said(clean)[2] == "decontaminated against bench.jsonl (1 prompts)"
    with clean.open("a") as file:
        file.write(json.dumps({"prompt": "1+2+3+5:", "answer": "0"}) + "\n")
    assert said(clean)[2].startswith("data.train: warning: clean.jsonl is not the file that")
