"""Whole runs with an agent: what it says is trained, recorded, replayed, interrupted and evaluated."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.registry import components
from gspo_lightning.rollouts.agents.outcome import CLASSES
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks

AGENT = runs.ROOT / "configs" / "agent.yaml"
BRIEF = ["--model.cold_start.steps=150", "--model.cold_start.demonstrations.size=2048", "--data.max_response_tokens=48"]

PARTS = """
from plugins import agent


async def solve(record, address):
    reward = await agent.solve(record, address)
    return {"reward": reward, "parts": {"right": reward, "characters": len(record["prompt"])}}
"""

ODD = """
import aiohttp


async def solve(record, address):
    body = {"messages": [{"role": "user", "content": record["prompt"]}]}
    headers = {"Authorization": f"Bearer {address.api_key}"}
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        async with http.post(f"{address.base_url}/chat/completions", json=body) as reply:
            said = (await reply.json())["choices"][0]["message"]["content"]
    return float(said[1:2] in "13579")
"""

TURNS = """
import aiohttp


async def solve(record, address):
    messages = [{"role": "user", "content": record["prompt"]}]
    headers = {"Authorization": f"Bearer {address.api_key}"}
    rewards = []
    async with aiohttp.ClientSession(headers=headers, raise_for_status=True) as http:
        for told in "+1", "":
            async with http.post(f"{address.base_url}/chat/completions", json={"messages": messages}) as reply:
                said = (await reply.json())["choices"][0]["message"]
            messages += [said, {"role": "user", "content": told}]
            rewards.append(float(said["content"][1:2] in "13579"))
    return {"reward": rewards[1], "turns": [2 * rewards[0]]}
"""

THROUGH_SOCKET = ODD.replace(
    "aiohttp.ClientSession(", "aiohttp.ClientSession(connector=aiohttp.UnixConnector(address.socket), "
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.fit(tmp_path_factory.mktemp("agent"), *BRIEF, "--data.record_rollouts=true", config=AGENT)


@pytest.mark.thorough
def test_an_agent_is_trained_on_what_it_was_served(trained: Path) -> None:
    scalars = runs.scalars(trained)
    assert all(gap < 1e-4 for _, gap in scalars["noise/sampler_logprob_gap"])
    assert all(1 <= turns <= 4 for _, turns in scalars["agents/turns"])
    assert {value for _, value in scalars["agents/rows"]} == {1.0}
    assert {value for _, value in scalars["agents/trained_share"]} == {1.0}
    assert {value for _, value in scalars["agents/forks/answer"]} == {0.0}
    rows = [json.loads(line) for line in (trained / "rollouts" / "000000.jsonl").read_text().splitlines()]
    assert len(rows) == 32
    assert any(m["role"] == "tool" for row in rows for m in row["messages"])
    for row in rows:
        right = row["messages"][-1]["content"].rpartition("#")[2] == row["answer"]
        assert row["reward"] == row["environment_reward"] == float(right)
        assert sum(row["response_mask"]) < len(row["completion_ids"]) or len(row["turn_ends"]) == 1


@pytest.mark.thorough
def test_parts_of_an_agents_reward_are_metrics_and_recorded(tmp_path: Path, trained: Path) -> None:
    runs.share_cold_start(trained.parents[1], tmp_path)
    (tmp_path / "graded_agent.py").write_text(PARTS)
    options = [f"--plugins+={tmp_path / 'graded_agent.py'}", "--data.rollouts.agent.function=graded_agent.solve"]
    run = runs.fit(tmp_path, *BRIEF, *options, "--data.record_rollouts=true", config=AGENT)
    scalars = runs.scalars(run)
    for iteration in range(2):
        lines = (run / "rollouts" / f"{iteration:06d}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["reward_logged"] for row in rows] == [
            {"right": row["reward"], "characters": float(len(row["prompt"]))} for row in rows
        ]
        mean = sum(len(row["prompt"]) for row in rows) / 32
        assert {v for step, v in scalars["reward/logged/characters"] if (step - 1) // 2 == iteration} == {mean}
    recorded = ["--data.rollouts=Recorded", f"--data.rollouts.path={run / 'rollouts'}"]
    recorded += ['--data.rewards={"correct": "ExactMatch"}', "--data.rollouts.rewards=recorded"]
    again = runs.fit(tmp_path / "again", *BRIEF, *recorded, "--trainer.limit_val_batches=0", config=AGENT)
    assert runs.scalars(again)["reward/logged/characters"] == scalars["reward/logged/characters"]


@pytest.mark.thorough
def test_a_recording_of_an_agent_replays_bit_for_bit(tmp_path: Path, trained: Path) -> None:
    runs.share_cold_start(trained.parents[1], tmp_path)
    recorded = ["--data.rollouts=Recorded", f"--data.rollouts.path={trained / 'rollouts'}"]
    recorded += ['--data.rewards={"correct": "ExactMatch"}', "--data.rollouts.rewards=recorded"]
    again = runs.fit(tmp_path, *BRIEF, *recorded, "--trainer.limit_val_batches=0", config=AGENT)
    assert runs.largest_difference(runs.weights(again), runs.weights(trained)) == 0.0


@pytest.mark.thorough
def test_an_interrupted_run_goes_on(tmp_path: Path, trained: Path) -> None:
    """The batches of turns depend on time, and with them the last digits of log-probabilities, but no token does."""
    runs.share_cold_start(trained.parents[1], tmp_path)
    with runs.interrupted(lambda loader: loader.iteration == 1 and loader.trained == 1):
        run = runs.fit(tmp_path, *BRIEF, config=AGENT, code=130)
    assert runs.fit(tmp_path, *BRIEF, "--ckpt_path=last", config=AGENT) == run
    assert runs.largest_difference(runs.weights(run), runs.weights(trained)) < 1e-5


@pytest.mark.thorough
def test_sampling_ahead_of_training(tmp_path: Path, trained: Path) -> None:
    runs.share_cold_start(trained.parents[1], tmp_path)
    run = runs.fit(tmp_path, *BRIEF, "--data.max_staleness=1", config=AGENT)
    assert runs.scalars(run)["staleness/max_age"][-1][1] > 0


@pytest.mark.thorough
def test_two_ranks_train_as_one_process(tmp_path: Path, trained: Path) -> None:
    """With a socket file for each, because each has a gateway."""
    (tmp_path / "through_socket.py").write_text(THROUGH_SOCKET)
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # a path of a socket is short, tmp_path may be long
    options = [*BRIEF, f"--plugins+={tmp_path / 'through_socket.py'}", f"--data.rollouts.socket={folder / 'socket'}"]
    options += ["--data.rollouts.agent.function=through_socket.solve", "--data.record_rollouts=true"]
    for name in ("one", "two"):
        runs.share_cold_start(trained.parents[1], tmp_path / name)
    one = runs.fit(tmp_path / "one", *options, config=AGENT)
    two = fit_on_ranks(tmp_path / "two", *options, "--trainer.strategy=ddp", config=AGENT)

    def completions(run: Path) -> list[tuple[str, str, list[int]]]:
        rows = [json.loads(line) for file in (run / "rollouts").iterdir() for line in file.open()]
        return sorted((row["iteration"], row["id"], row["completion_ids"]) for row in rows)

    assert len({file.name for file in (two / "rollouts").iterdir()}) == 4
    assert completions(one) == completions(two)
    assert runs.largest_difference(runs.weights(one), runs.weights(two)) < 1e-5
    assert runs.scalars(two)["agents/turns"] == runs.scalars(one)["agents/turns"]
    folder.rmdir()  # empty: the sockets are gone


def test_a_path_too_long_for_a_socket_is_refused_before_the_first_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/tmp/" + "s" * 92
    options = [*runs.SMALL, *BRIEF, f"--trainer.default_root_dir={tmp_path}", f"--data.rollouts.socket={path}"]
    assert main(["fit", f"--config={AGENT}", *options[1:]]) == 2
    error = capsys.readouterr().err
    assert "AgentRollouts.socket: has 97 bytes; a path of a socket has at most 96" in error
    assert "trying again" not in error


@pytest.mark.thorough
def test_predictions_are_conversations_of_the_agent(trained: Path) -> None:
    argv = ["predict", f"--config={AGENT}", f"--trainer.default_root_dir={trained.parents[1]}", *BRIEF]
    assert main([*argv, "--data.evaluation.limit=8"]) == 0
    (path,) = trained.parents[1].rglob("predictions.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 8
    assert all(row["messages"][0] == {"role": "user", "content": row["prompt"]} for row in rows)


@pytest.mark.thorough
def test_rewards_of_turns_give_each_turn_its_advantage(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.share_cold_start(trained.parents[1], tmp_path)
    (tmp_path / "turns_agent.py").write_text(TURNS)
    options = [f"--plugins+={tmp_path / 'turns_agent.py'}", "--data.rollouts.agent.function=turns_agent.solve"]
    options += ["--model.objective=GSPOToken", "--data.turn_credit=turn", "--data.advantages=GroupMean"]
    batches = runs.handed_out(monkeypatch)
    run = runs.fit(tmp_path, *BRIEF, *options, "--data.record_rollouts=true", config=AGENT)
    wanted: dict[tuple[int, ...], list[float]] = {}
    for file in sorted((run / "rollouts").iterdir()):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for group in (rows[i : i + 4] for i in range(0, len(rows), 4)):
            said = [[odd(m["content"]) for m in row["messages"] if m["role"] == "assistant"] for row in group]
            assert [row["turn_rewards"] for row in group] == [[2 * a, b] for a, b in said]
            assert [row["reward"] for row in group] == [2 * a + b for a, b in said]
            whole, last = (sum(values) / 4 for values in zip(*((2 * a + b, b) for a, b in said), strict=True))
            for row, (a, b) in zip(group, said, strict=True):
                first, end = row["turn_ends"]
                own = [2 * a + b - whole] * first + [b - last] * (end - first)
                key = (*row["prompt_ids"], *row["completion_ids"])
                wanted[key] = [x * mask for x, mask in zip(own, row["response_mask"], strict=True)]
    assert any(len({*row} - {0.0}) == 2 for row in wanted.values())
    seen = 0
    for part in (micro for batch in batches for micro in batch.micro_batches):
        for ids, length, size, values in zip(
            part.input_ids.tolist(), part.lengths.tolist(), part.response_lengths, part.advantages, strict=True
        ):
            assert values[:size].tolist() == pytest.approx(wanted[tuple(ids[:length])], abs=1e-5)
            seen += 1
    assert seen == 64


def odd(completion: str) -> float:
    """The reward of the agent below."""
    return float(completion[1:2] in "13579")


@pytest.mark.thorough
def test_suites_run_the_agent_with_its_reward(tmp_path: Path, trained: Path) -> None:
    runs.share_cold_start(trained.parents[1], tmp_path)
    (tmp_path / "odd_agent.py").write_text(ODD)
    suite = tmp_path / "odd.yaml"
    suite.write_text(
        "about: held-out expressions\n"
        "data: {class_path: CalculatorTask, init_args: {split: held_out, size: 256}}\n"
        "reward: {class_path: EnvironmentReward}\n"
        "sampling: {temperature: 1.0, top_p: 1.0, max_response_tokens: 48}\n"
        "samples: 2\nmetrics: [avg]\n"
    )
    agent = [f"--plugins+={tmp_path / 'odd_agent.py'}", "--data.rollouts.agent.function=odd_agent.solve"]
    run = runs.fit(tmp_path, *BRIEF, *agent, f"--data.suites=[{suite}]", config=AGENT)
    logged = [value for _, value in runs.scalars(run)["suite/odd/avg@2"]]
    config = [f"--config={AGENT}", f"--trainer.default_root_dir={tmp_path}", *BRIEF, *agent]

    def evaluate(name: str, *more: str) -> tuple[float, dict[tuple[str, int], str]]:
        words = [f"--suite={suite}", f"--output={tmp_path / name}", "--workers=1", *config, *more]
        assert main(["evaluate", *words]) == 0
        rows = [json.loads(line) for line in (tmp_path / name / "samples.jsonl").read_text().splitlines()]
        assert {row["value"] for row in rows} == {0.0, 1.0}
        assert all(row["value"] == odd(row["completion"]) for row in rows)
        found = json.loads((tmp_path / name / "results.json").read_text())["odd"]["avg@2"]["value"]
        assert found == pytest.approx(sum(row["value"] for row in rows) / 512)
        return found, {(row["id"], row["sample"]): row["completion"] for row in rows}

    after, texts = evaluate("after", "--ckpt_path=last")
    before, _ = evaluate("before")
    assert logged == pytest.approx([before, after])
    file = tmp_path / "after" / "samples.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[::3]))
    assert evaluate("after", "--ckpt_path=last") == (after, texts)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--data.rollouts.agent.function=plugins.agent.solves"], "has no attribute 'solves'"),
        (["--data.rollouts.agent=PythonAgnt"], "'PythonAgnt' is not registered; did you mean PythonAgent"),
        (["--data.prompts_in_flight=64"], "data.prompts_in_flight: needs a rollout source that can continue"),
        (["--data.rollouts=GroupedSampler"], "GroupedSampler has none"),
    ],
)
def test_mistakes_are_one_message_before_anything_runs(
    arguments: list[str], complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *arguments, config=AGENT, code=2)
    assert complaint in capfd.readouterr().err


@pytest.mark.thorough
def test_the_example_of_the_page_runs(page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page_folder("agents"))
    commands = re.findall(r"```bash\ngspo (.*)\n```", (runs.ROOT / "docs" / "agents.md").read_text())
    assert commands[0] == "fit --config agent"
    few = [*runs.SMALL, "--model.cold_start.steps=30", "--trainer.max_epochs=1"]
    few += ["--model.cold_start.demonstrations.size=512", "--data.max_response_tokens=40"]
    assert main([*commands[1].split(), *few]) == 0
    (summary,) = Path("runs").rglob("summary.json")
    lines = [line for e in json.loads(summary.read_text())["examples"] for line in e["after"].split("\n")]
    assert "user: ?" in lines


def test_the_page_names_what_is_there() -> None:
    page = (runs.ROOT / "docs" / "agents.md").read_text()
    own = {name for name, cls in components("agents").items() if cls.__module__.startswith("gspo_lightning.")}
    assert {name for name in own if f"`{name}`" not in page} == set()
    assert {name for name in CLASSES if f"| `{name}` |" not in page} == set()
