"""Whole runs with an environment: from the page's example to a resume in the middle of an iteration."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.core.registry import components
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.training.data import ExperienceLoader
from tests.runs import runs

DOCS = (runs.ROOT / "docs" / "environments.md").read_text()
GUESS = runs.ROOT / "configs" / "guess.yaml"
CALCULATOR = runs.ROOT / "configs" / "calculator.yaml"
BRIEF = ["--model.cold_start.steps=30", "--model.cold_start.demonstrations.step=10"]
BY_TURN = ["--model.objective=GSPOToken", "--data.turn_credit=turn", "--data.rollouts.environment.cost=0.125"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MiniBatch]]:
    """A run, and what it was trained on."""
    with pytest.MonkeyPatch.context() as patched:
        batches = runs.handed_out(patched)
        return runs.fit(tmp_path_factory.mktemp("guess"), *BRIEF, *BY_TURN, config=GUESS), batches


@pytest.fixture
def undisturbed(trained: tuple[Path, list[MiniBatch]]) -> Path:
    return trained[0]


@pytest.mark.thorough
def test_turns_with_rewards_of_their_own_are_trained_on(trained: tuple[Path, list[MiniBatch]]) -> None:
    undisturbed, batches = trained
    scalars = runs.scalars(undisturbed)
    assert all(1 < turns <= 5 for _, turns in scalars["response/turns"])
    assert all(low < 0 for _, low in scalars["reward/parts/found"])  # wrong guesses cost
    assert all(gap < 1e-4 for _, gap in scalars["noise/sampler_logprob_gap"])
    parts = [m for batch in batches for m in batch.micro_batches]
    assert all(m.advantages.shape == m.response_mask.shape for m in parts)
    assert any(
        len(set(row[mask].tolist())) > 1 for m in parts for row, mask in zip(m.advantages, m.response_mask, strict=True)
    )
    assert not any(m.advantages[~m.response_mask].any() for m in parts)


@pytest.mark.thorough
def test_a_resume_in_the_middle_of_an_iteration_goes_on_with_the_same_conversations(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal but for rounding: which conversations speak in one batch depends on when their environments answer."""
    runs.share_cold_start(undisturbed.parents[1], tmp_path)
    original = ExperienceLoader.mark_trained

    def interrupt(self: ExperienceLoader) -> None:
        original(self)
        if self.iteration * 2 + self.trained == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ExperienceLoader, "mark_trained", interrupt)
    run = runs.fit(tmp_path, *BRIEF, *BY_TURN, config=GUESS, code=128 + signal.SIGINT)
    monkeypatch.undo()
    assert runs.fit(tmp_path, *BRIEF, *BY_TURN, "--ckpt_path=last", config=GUESS) == run
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) < 1e-6
    found, expected = runs.scalars(run), runs.scalars(undisturbed)
    assert found.keys() == expected.keys()
    for tag, points in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points]
        values = [value for _, value in points]
        assert [value for _, value in found[tag]] == pytest.approx(values, rel=1e-3, abs=1e-5), tag


@pytest.mark.thorough
def test_conversations_can_be_read(undisturbed: Path) -> None:
    samples = runs.events(undisturbed).Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert re.search(r"⏎user: [<>?]", samples)
    root = undisturbed.parents[1]
    argv = ["predict", f"--config={GUESS}", f"--trainer.default_root_dir={root}", "--data.evaluation.limit=4"]
    assert main([*argv, *BRIEF]) == 0
    (path,) = root.rglob("predictions.jsonl")
    for line in path.read_text().splitlines():
        row = json.loads(line)
        roles = [m["role"] for m in row["messages"]]
        assert roles[::2] == ["assistant"] * len(roles[::2])
        assert row["completion"] == "\n".join(m["content"] for m in row["messages"] if m["role"] == "assistant")
        assert row["environment_reward"] == sum(row["turn_rewards"]) == row["reward"]
        assert len(row["response_mask"]) == len(row["completion_ids"])
        assert row["finish_reason"] in ("done", "length")


@pytest.mark.thorough
def test_the_example_of_the_page_runs(page_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for _, block in re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", DOCS, flags=re.DOTALL):
        assert len(block.splitlines()) <= 24
    monkeypatch.chdir(page_folder("environments"))
    (command,) = re.findall(r"```bash\ngspo (.*)\n```", DOCS)
    few = [*runs.SMALL, "--model.cold_start.steps=30", "--trainer.max_epochs=1"]
    few.append("--model.cold_start.demonstrations.size=512")
    assert main([*command.split(), *few]) == 0
    (summary,) = Path("runs").rglob("summary.json")
    lines = [line for e in json.loads(summary.read_text())["examples"] for line in e["after"].split("\n")]
    assert "user: ?" in lines


def test_the_page_names_what_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    built_in = {
        name
        for kind in ("environments", "tools")
        for name, cls in components(kind).items()
        if cls.__module__.startswith("gspo_lightning.")
    }
    assert {name for name in built_in if f"`{name}`" not in DOCS} == set()
    monkeypatch.chdir(runs.ROOT)
    shown: list[str] = re.findall(r"```yaml\n(data:.*?)```", DOCS, flags=re.DOTALL)
    tools = next(text for text in shown if "calculator: " in text)
    config = Path(os.environ.get("TMPDIR", "/tmp")) / f"tools-{os.getpid()}.yaml"
    config.write_text(tools)
    try:
        assert main(["fit", "--config=configs/quickstart.yaml", f"--config={config}", "--print_config"]) == 0
    finally:
        config.unlink()
    printed = yaml.safe_load(capsys.readouterr().out)["data"]["rollouts"]["init_args"]["environment"]["init_args"]
    assert set(printed["tools"]) == {"calculator", "python"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--data.rollouts=GroupedSampler"], "GroupedSampler has none"),
        (["--data.turn_credit=turn"], "GSPO takes one advantage per response"),
        (['--data.rewards={"correct": "ExactMatch"}', *BY_TURN], "no reward scores single turns"),
        (
            ["--data.rollouts.environment=GuessNumbr"],
            "data.rollouts.environment: 'GuessNumbr' is not registered; did you mean GuessNumber",
        ),
        (["--data.rollouts.environment.guesses=0"], "GuessNumber.guesses"),
        (["--data.prompts_in_flight=64"], "data.prompts_in_flight: needs a rollout source that can continue"),
    ],
)
def test_mistakes_are_one_message_before_anything_runs(
    arguments: list[str], complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", f"--config={GUESS}", f"--trainer.default_root_dir={tmp_path}", *arguments]) == 2
    shown = " ".join(capfd.readouterr().err.split())
    assert complaint in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(("config", "before", "after"), [(GUESS, 0.35, 0.9), (CALCULATOR, 0.05, 0.95)])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_examples_learn(config: Path, before: float, after: float, seed: int, tmp_path: Path) -> None:
    summary = runs.summary(runs.fit(tmp_path, f"--seed_everything={seed}", config=config, small=False))
    assert summary["accuracy_before"] <= before
    assert summary["accuracy_after"] >= after
