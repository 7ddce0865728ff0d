"""Thoughts that the prompt opens or whose marks are special tokens: a cut thought is paid nothing, whoever asks."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gspo_lightning.cli import main
from tests.runs import runs
from tests.runs.thinking_models import BOX, OPENED, PLAIN, thinking_model

REWARD = '{"correct": {"class_path": "MathVerifier", "init_args": {"require_box": true}}}'
TEMPLATES = {"opened": OPENED, "plain": PLAIN}


def rows_of(run: Path) -> list[dict[str, Any]]:
    files = sorted((run / "rollouts").iterdir())
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def expected(row: dict[str, Any], tokenizer: Any, *, opened: bool) -> float:
    """The reward by token ids alone: the last box after the last end of a thought, if no thought is open then."""
    begin, end, box = (tokenizer.convert_tokens_to_ids(token) for token in ("<think>", "</think>", BOX))
    thinking, right = opened, False
    for token in row["completion_ids"]:
        if token in (begin, end):
            thinking, right = token == begin, False
        right = right or token == box
    return float(right and not thinking)


@pytest.fixture(
    params=[("opened", False), ("opened", True), ("plain", True)], ids=lambda p: f"{p[0]}-{p[1]}", scope="module"
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    template, special = request.param
    folder = tmp_path_factory.mktemp("thinking") / "model"
    return thinking_model(folder, special=special, template=TEMPLATES[template]), template == "opened"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("thinking") / "train.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+{4 - n}:", "answer": "4"}) + "\n" for n in range(5)) * 4)
    return path


def options(model: Path, data: Path, *more: str) -> list[str]:
    return [
        "--model.cold_start=null", f"--model.name_or_path={model}", f"--data.train={data}", f"--data.val={data}",
        f"--data.rewards={REWARD}", "--data.group_size=8", "--data.prompts_per_rollout=16",
        "--data.max_response_tokens=40", "--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run(model: tuple[Path, bool], data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("thinking"), *options(model[0], data, "--data.record_rollouts=true"))


@pytest.mark.thorough
def test_training_pays_the_answer_behind_a_thought_and_never_one_inside(run: Path, model: tuple[Path, bool]) -> None:
    tokenizer, rows = AutoTokenizer.from_pretrained(model[0]), rows_of(run)
    assert [row["reward"] for row in rows] == [expected(row, tokenizer, opened=model[1]) for row in rows]
    inside = [row for row in rows if row["reward"] == 0 and BOX in row["completion"]]
    assert len(inside) > 5
    assert sum(row["reward"] for row in rows) > 5
    for row in rows:
        said = tokenizer.decode(row["completion_ids"], skip_special_tokens=False)
        for other in ("<eos>", "<pad>", "<unk>"):
            said = said.replace(other, "")
        assert row["completion"] == said  # the marks are seen, whatever decoding drops


@pytest.mark.thorough("opened-True", "plain-True")
def test_scoring_the_records_again_gives_the_same_rewards(run: Path, tmp_path: Path) -> None:
    lines = [line for file in sorted((run / "rollouts").iterdir()) for line in file.read_text().splitlines()]
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    words = ['--reward=MathVerifier:{"require_box": true}', f"--input={tmp_path / 'in.jsonl'}", "--workers=1"]
    assert main(["score", *words, f"--output={tmp_path / 'out.jsonl'}"]) == 0
    scored = [json.loads(line)["reward"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert scored == [json.loads(line)["reward"] for line in lines]


@pytest.mark.thorough
def test_a_replay_of_records_gives_the_same_rewards(
    run: Path, model: tuple[Path, bool], data: Path, tmp_path: Path
) -> None:
    source = ["--data.rollouts=Recorded", f"--data.rollouts.path={run / 'rollouts'}", "--data.record_rollouts=true"]
    again = runs.fit(tmp_path, *options(model[0], data, *source, "--trainer.limit_val_batches=0"))
    assert [row["reward"] for row in rows_of(again)] == [row["reward"] for row in rows_of(run)]


@pytest.mark.thorough
def test_an_evaluation_has_no_answer_and_no_vote_inside_a_thought(
    model: tuple[Path, bool], data: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "sums.yaml"
    suite.write_text(
        f"about: sums\ndata: {data}\nreward: {{class_path: MathVerifier, init_args: {{require_box: true}}}}\n"
        "sampling: {temperature: 1.0, top_p: 1.0, max_response_tokens: 40}\nmetrics: [avg, maj]\nsamples: 4\n"
    )
    words = ["evaluate", f"--suite={suite}", f"--model={model[0]}", "--workers=1"]
    assert main([*words, f"--output={tmp_path / 'out'}"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(model[0])
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    for row in rows:
        ids = {"completion_ids": tokenizer(row["completion"], add_special_tokens=False)["input_ids"]}
        assert row["value"] == expected(ids, tokenizer, opened=model[1])
        assert row["vote"] is None if row["unfinished_thought"] else not row["value"] or row["vote"] == "="
    assert any(row["unfinished_thought"] and BOX in row["completion"] for row in rows)
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    lines = tmp_path / "lines.jsonl"
    keys = ("id", "sample", "completion", "truncated", "unfinished_thought")
    lines.write_text("".join(json.dumps({key: row[key] for key in keys}) + "\n" for row in rows))
    words = ["evaluate", f"--suite={suite}", f"--completions={lines}", "--workers=1", f"--output={tmp_path / 'again'}"]
    assert main(words) == 0
    assert json.loads((tmp_path / "again" / "results.json").read_text())["sums"] == told["sums"]


@pytest.mark.thorough
def test_a_format_that_wants_the_mark_the_template_has_written_is_said_at_start(
    model: tuple[Path, bool], data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wants = r"<think>.*</think>.*"
    bare = r"(<think>)?.*</think>.*"
    rewards = {
        name: {"class_path": "FormatReward", "init_args": {"pattern": pattern}}
        for name, pattern in (("wants", wants), ("bare", bare))
    }
    with caplog.at_level(logging.WARNING):
        runs.fit(tmp_path, *options(model[0], data, f"--data.rewards={json.dumps(rewards)}"))
    said = [record.getMessage() for record in caplog.records if "has written it" in record.getMessage()]
    assert len(said) == int(model[1])
    assert all(message.startswith("rewards.wants pays less") for message in said)
