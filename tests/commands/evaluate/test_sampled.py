"""``gspo evaluate`` with a model: the quickstart's checkpoint, its exported folder, its config, and a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.export import export
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler
from tests.rollouts.toy_server import Reply, ToyServer
from tests.runs import runs

PROBLEMS = 40


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The held-out prompts of the runs below."""
    path = tmp_path_factory.mktemp("suite") / "held_out.yaml"
    path.write_text(
        "about: held-out sums\n"
        "data: {class_path: ChainTask, init_args: {split: held_out, size: 512}}\n"
        "reward: {class_path: ExactMatch}\n"
        "sampling: {temperature: 0.0, top_p: 1.0, max_response_tokens: 32}\n"
        "metrics: [avg]\n"
    )
    return path


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, cold_starts: Path) -> Path:
    """A root with one small run that begins with the quickstart's cold start."""
    root = tmp_path_factory.mktemp("taught")
    runs.share_cold_start(cold_starts, root)
    runs.fit(root, "--data.max_response_tokens=32", f"--data.evaluation.limit={PROBLEMS}")
    return root


@pytest.fixture
def last(taught: Path) -> Path:
    return taught / "quickstart" / "version_0" / "checkpoints" / "last.ckpt"


def evaluate(output: Path, suite: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    words = [f"--suite={suite}", f"--output={output}", "--workers=1", f"--limit={PROBLEMS}", *map(str, arguments)]
    assert main(["evaluate", *words]) == code
    found: dict[str, Any] = json.loads((output / "results.json").read_text())
    return found


def texts(output: Path) -> dict[tuple[str, int], str]:
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    return {(line["id"], line["sample"]): line["completion"] for line in lines}


@pytest.mark.thorough
def test_every_way_to_the_model_gives_what_validate_gave(taught: Path, last: Path, suite: Path, tmp_path: Path) -> None:
    export(last, tmp_path / "folder")
    config = ("--config", runs.QUICKSTART, f"--trainer.default_root_dir={taught}")
    ways: dict[str, tuple[object, ...]] = {
        "checkpoint": ("--ckpt_path", last),
        "run": ("--ckpt_path", last.parents[1]),
        "folder": ("--model", tmp_path / "folder"),
        "config": (*config, "--ckpt_path=last"),
        "before": config,
    }
    found = {
        name: evaluate(tmp_path / name, suite, *words)["held_out"]["avg@1"]["value"] for name, words in ways.items()
    }
    told = runs.summary(taught / "quickstart" / "version_0")
    assert found["checkpoint"] == found["run"] == found["folder"] == found["config"] == told["accuracy_after"]
    assert found["before"] == told["accuracy_before"]
    assert texts(tmp_path / "checkpoint") == texts(tmp_path / "folder") == texts(tmp_path / "config")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("32", "float32"), ("bf16", "bfloat16"), ("bf16-mixed", "bfloat16"), ("bf16-true", "bfloat16")],
)
def test_a_config_is_evaluated_in_the_precision_of_its_rollouts(
    precision: str, dtype: str, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = GroupedSampler.extend, []

    def spied(self: GroupedSampler, policy: Policy, *args: Any, **options: Any) -> Any:
        seen.append(str(compute_dtype(policy)))
        return own(self, policy, *args, **options)

    monkeypatch.setattr(GroupedSampler, "extend", spied)
    config = ("--config", runs.QUICKSTART, "--model.cold_start=null", f"--trainer.precision={precision}")
    evaluate(tmp_path / "found", suite, *config, "--limit=2")
    assert seen[-1] == f"torch.{dtype}"  # the probes before it also sample in float32


@pytest.mark.thorough("False")
@pytest.mark.parametrize("dynamic", [False, True])
def test_prompts_are_shared_unless_embeddings_depend_on_the_longest_row(
    dynamic: bool, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = GroupedSampler.extend, []

    def spied(self: GroupedSampler, policy: Policy, *args: Any, **options: Any) -> Any:
        seen.append(policy.packed)
        return own(self, policy, *args, **options)

    monkeypatch.setattr(GroupedSampler, "extend", spied)
    policy = load_policy(ModelSettings("tiny-qwen3"))
    if dynamic:
        policy.model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    policy.save_pretrained(tmp_path / "model")
    evaluate(tmp_path / "found", suite, "--model", tmp_path / "model", "--limit=2")
    assert seen[-1] is not dynamic  # the probes before it try both


@pytest.mark.thorough
def test_conversations_with_an_environment_are_evaluated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "guess.yaml"
    text = (
        "about: numbers\ndata: {class_path: GuessTask, init_args: {split: held_out}}\n"
        "reward: {class_path: EnvironmentReward}\nmetrics: [avg]\n"
        "sampling: {temperature: 0.0, top_p: 1.0, max_response_tokens: 24}\n"
    )
    suite.write_text(text)
    config = ("--config", runs.ROOT / "configs" / "guess.yaml", "--model.cold_start=null")
    found = evaluate(tmp_path / "found", suite, *config, "--limit=5", "--data.rollouts.max_turns=2")
    assert found["guess"]["avg@1"]["n"] == 5
    rows = [json.loads(line) for line in (tmp_path / "found" / "samples.jsonl").read_text().splitlines()]
    assert {row["status"] for row in rows} == {"ok"}
    suite.write_text(text + "system_prompt: Be quick.\n")
    words = [f"--suite={suite}", f"--output={tmp_path / 'refused'}", *map(str, config)]
    assert main(["evaluate", *words]) == 2
    assert "system_prompt: is not seen by EnvironmentRollouts" in capfd.readouterr().err


@pytest.mark.long
def test_adapters_answer_as_their_exported_folder(suite: Path, tmp_path: Path) -> None:
    overlay = f"--config={runs.ROOT / 'configs' / 'lora.yaml'}"
    run = runs.fit(
        tmp_path / "runs",
        overlay,
        "--model.optimizer.lr=1e-3",
        "--model.cold_start=null",
        "--data.max_response_tokens=32",
    )
    last = run / "checkpoints" / "last.ckpt"
    export(last, tmp_path / "folder")
    for name, words in {"adapters": ("--ckpt_path", last), "folder": ("--model", tmp_path / "folder")}.items():
        evaluate(tmp_path / name, suite, *words)
    assert texts(tmp_path / "adapters") == texts(tmp_path / "folder")


@pytest.mark.thorough
def test_an_interrupted_sampling_goes_on_with_the_same_answers(last: Path, suite: Path, tmp_path: Path) -> None:
    warm = suite.with_name("warm.yaml")
    warm.write_text(suite.read_text().replace("temperature: 0.0", "temperature: 1.0"))
    words = ("--ckpt_path", last, "--samples=3")
    whole = evaluate(tmp_path / "whole", warm, *words)
    evaluate(tmp_path / "cut", warm, *words)
    file = tmp_path / "cut" / "samples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 3 * PROBLEMS
    file.write_text("".join(lines[::2]) + lines[1][:40])
    assert evaluate(tmp_path / "cut", warm, *words)["warm"] == whole["warm"]
    assert texts(tmp_path / "cut") == texts(tmp_path / "whole")
    rows = texts(tmp_path / "whole")
    assert any(rows[str(i), 0] != rows[str(i), 1] for i in range(1, PROBLEMS + 1))  # draws of their own


@pytest.mark.thorough
def test_a_server_answers_the_same_and_its_death_loses_nothing(
    last: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gspo_lightning.commands.evaluate.served._FIRST_PAUSE_S", 0.01)
    export(last, tmp_path / "folder")
    here = evaluate(tmp_path / "here", suite, "--model", tmp_path / "folder")

    answered: list[int] = []

    def dies(_: str, body: dict[str, Any], reply: Reply) -> Reply:
        if "prompt" not in body:
            return reply
        answered.append(1)
        return (500, {"error": "gone"}) if len(answered) > 15 else reply

    with ToyServer(fault=dies) as server:
        server.load(str(tmp_path / "folder"))
        evaluate(tmp_path / "served", suite, "--server", server.url, code=1)
        error = capsys.readouterr().err
        assert "does not answer any more" in error
        assert "repeat the command to continue" in error
        assert "gspo_lightning did not expect" not in error
        assert 0 < len(texts(tmp_path / "served")) <= 15
        server.fault = None
        found = evaluate(tmp_path / "served", suite, "--server", server.url)
    assert found["held_out"]["avg@1"] == here["held_out"]["avg@1"]
    assert texts(tmp_path / "served") == texts(tmp_path / "here")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "http://127.0.0.1:9"], "--server: http://127.0.0.1:9"),
        (["--ckpt_path=last"], "of which runs?"),
        (["--model=a", "--server=b"], "is one of several"),
        (["--ckpt_path=absent.ckpt"], "'absent.ckpt' does not exist"),
    ],
)
def test_evaluate_refuses_a_missing_or_ambiguous_model(
    words: list[str], said: str, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", f"--suite={suite}", f"--output={tmp_path}", *words]) == 2
    assert said in capsys.readouterr().err
