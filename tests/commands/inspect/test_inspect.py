"""Inspect on checkpoints: real evaluations in this process, read back from their logs."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.export import export
from gspo_lightning.training.suites.problems import read_problems
from gspo_lightning.training.suites.suite import load_suite
from tests import ROOT
from tests.rollouts.toy_server import Reply, ToyServer
from tests.runs import runs

inspect_ai = pytest.importorskip("inspect_ai")

from inspect_ai import Task  # noqa: E402
from inspect_ai._util.error import PrerequisiteError  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.log import EvalLog, read_eval_log  # noqa: E402
from inspect_ai.model import GenerateConfig, Model, ModelOutput, get_model  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, solver  # noqa: E402

from gspo_lightning.commands.inspect import entry, reward_scorer  # noqa: E402

PROBLEMS = 40
SUITE = """\
about: held-out sums
data: {class_path: ChainTask, init_args: {split: held_out, size: 512}}
reward: {class_path: ExactMatch}
sampling: {temperature: 0.0, top_p: 1.0, max_response_tokens: 32}
metrics: [avg]
"""


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, cold_starts: Path) -> Path:
    """A run of a moment that begins with the quickstart's cold start."""
    root = tmp_path_factory.mktemp("taught")
    runs.share_cold_start(cold_starts, root)
    return runs.fit(root, "--data.max_response_tokens=32", f"--data.evaluation.limit={PROBLEMS}")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "held_out.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def sums(suite: Path) -> Iterator[Task]:
    """The suite's problems as a task of Inspect."""
    problems = read_problems(load_suite(str(suite)), None)[:PROBLEMS]
    samples = [
        Sample(id=int(p.id), input=p.prompt, target=str(p.columns["answer"]), metadata={"row": p.id}) for p in problems
    ]
    scorer = reward_scorer("ExactMatch")
    yield Task(dataset=samples, scorer=scorer)
    scorer.close()


OPEN: list[Model] = []


def fresh(name: object, **arguments: Any) -> Model:
    """Not one that an earlier test has asked; closed after the test."""
    OPEN.append(get_model(f"gspo/{name}", memoize=False, **arguments))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().api.close()


def evaluate(task: Task, model: Model, logs: Path, **config: Any) -> EvalLog:
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(logs), display="none", **config)
    return read_eval_log(log.location)


def accuracy(log: EvalLog) -> float:
    assert log.status == "success", log.error
    assert log.results is not None
    return float(log.results.scores[0].metrics["accuracy"].value)


def texts(log: EvalLog) -> dict[tuple[int, int], str]:
    assert log.samples is not None
    return {(int(sample.id), sample.epoch): sample.output.completion for sample in log.samples}


def recorded(output: Path) -> dict[tuple[int, int], str]:
    """The same of ``gspo evaluate``, whose first sample is number 0."""
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    return {(int(line["id"]), line["sample"] + 1): line["completion"] for line in lines}


@pytest.mark.thorough
def test_a_checkpoint_a_run_and_a_folder_give_what_validate_and_evaluate_gave(
    taught: Path, suite: Path, sums: Task, tmp_path: Path
) -> None:
    last = taught / "checkpoints" / "last.ckpt"
    words = [f"--suite={suite}", f"--output={tmp_path / 'out'}", f"--limit={PROBLEMS}", f"--ckpt_path={last}"]
    assert main(["evaluate", *words, "--workers=1"]) == 0
    export(last, tmp_path / "folder")
    for name in (last, taught, tmp_path / "folder"):
        model = fresh(name)
        log = evaluate(sums, model, tmp_path / "logs", temperature=0, max_tokens=32)
        assert accuracy(log) == runs.summary(taught)["accuracy_after"]
        assert texts(log) == recorded(tmp_path / "out")
        assert log.eval.model == f"gspo/{name}"
        assert sum(model.api.backend.batches) == PROBLEMS
        assert max(model.api.backend.batches) >= 10  # requests that come together are sampled together
    wrong = next(sample for sample in log.samples or () if sample.scores["reward_scorer"].value == "I")
    assert wrong.scores["reward_scorer"].answer == wrong.output.completion  # a column of Inspect's viewer
    assert wrong.scores["reward_scorer"].metadata == {"reward": 0.0, "status": "ok"}
    scorer = log.eval.scorers[0]
    assert (scorer.name, scorer.options) == ("reward_scorer", {"reward": "ExactMatch"})


@pytest.mark.thorough
def test_epochs_have_draws_of_their_own_that_do_not_depend_on_timing(taught: Path, sums: Task, tmp_path: Path) -> None:
    first, second, other = (
        evaluate(sums, fresh(taught), tmp_path, limit=10, epochs=3, max_tokens=12, max_connections=most, seed=seed)
        for most, seed in ((7, 1), (64, 1), (64, 2))
    )
    answers = [sorted((i, text) for (i, _), text in texts(log).items()) for log in (first, second, other)]
    assert answers[0] == answers[1] != answers[2]
    rows = texts(first)
    assert any(rows[i, 1] != rows[i, 2] for i, epoch in rows if epoch == 1)


@pytest.mark.thorough
def test_another_source_and_a_server_answer_the_same(taught: Path, sums: Task, tmp_path: Path) -> None:
    last = taught / "checkpoints" / "last.ckpt"
    wanted = texts(evaluate(sums, fresh(last), tmp_path, temperature=0, max_tokens=32))
    slow = fresh(last, source="TransformersGenerate")
    assert texts(evaluate(sums, slow, tmp_path, temperature=0, max_tokens=32)) == wanted
    export(last, tmp_path / "folder")
    with ToyServer() as server:
        server.load(str(tmp_path / "folder"))
        log = evaluate(sums, fresh("auto", server=server.url), tmp_path, temperature=0, max_tokens=32)
        assert texts(log) == wanted
        assert (
            texts(evaluate(sums, fresh("auto", base_url=server.url), tmp_path, temperature=0, max_tokens=32)) == wanted
        )


@pytest.mark.thorough
def test_a_server_that_dies_ends_the_evaluation_and_keeps_what_it_has_answered(
    taught: Path, sums: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gspo_lightning.commands.inspect.provider.PATIENCE_S", 0.0)
    export(taught / "checkpoints" / "last.ckpt", tmp_path / "folder")
    answered: list[int] = []

    def dies(_: str, body: dict[str, Any], reply: Reply) -> Reply:
        if "prompt" not in body:
            return reply
        answered.append(1)
        return (500, {"error": "gone"}) if len(answered) > 30 else reply

    with ToyServer(fault=dies) as server:
        server.load(str(tmp_path / "folder"))
        model = fresh("auto", server=server.url)
        log = evaluate(sums, model, tmp_path, temperature=0, max_tokens=32, max_connections=2)
        assert log.status == "error"
        assert log.error is not None
        assert "gave status 500" in log.error.message
        assert sum(sample.error is None for sample in log.samples or ()) > 0


@pytest.mark.thorough
def test_inspect_answer_has_usage_logprobs_and_stop_reason(taught: Path) -> None:
    async def ask(**config: Any) -> Any:
        return await fresh(taught).generate("3+4:", config=GenerateConfig(temperature=0, **config))

    whole = asyncio.run(ask(max_tokens=32, logprobs=True, num_choices=2))
    assert len(whole.choices) == 2
    assert whole.stop_reason == "stop"
    tokens = whole.choices[0].logprobs.content
    assert whole.usage.output_tokens == 2 * len(tokens)
    assert whole.usage.input_tokens == 4  # a character is a token
    assert whole.completion == "".join(one.token for one in tokens[:-1])  # the last one ends the answer
    assert all(one.logprob <= 0 for one in tokens)
    cut = asyncio.run(ask(max_tokens=1))
    assert (cut.completion, cut.stop_reason) == (whole.completion[:1], "max_tokens")
    stop = whole.completion[1]
    stopped = asyncio.run(ask(max_tokens=32, stop_seqs=[stop]))
    assert (stopped.completion, stopped.stop_reason) == (whole.completion.partition(stop)[0], "stop")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("absent.ckpt", {}, "'absent.ckpt' does not exist"),
        ("./absent", {}, "the folder './absent' does not exist"),
        ("x", {"surce": "GroupedSampler"}, "did you mean source"),
        ("tiny-qwen3", {"source": "NobodysSampler"}, "is not registered"),
        ("auto", {"server": "http://127.0.0.1:9"}, "start the server"),
        ("auto", {"server": "localhost"}, "is not a URL"),
        ("auto", {"server": "http://127.0.0.1:9", "source": "GroupedSampler"}, "does not go with a server"),
    ],
)
def test_inspect_refuses_an_unusable_model_source_or_server(name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(PrerequisiteError) as found:
        fresh(name, **arguments)
    assert said in str(found.value.message)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("reward", "init_args", "said"),
    [
        ("ExactMach", {}, "did you mean ExactMatch"),
        ("MathVerifier", {"presision": 3}, "has no setting 'presision'"),
    ],
)
def test_inspect_scorer_refuses_unknown_rewards_and_settings(reward: str, init_args: dict[str, Any], said: str) -> None:
    with pytest.raises(PrerequisiteError) as found:
        reward_scorer(reward, **init_args)
    assert said in str(found.value.message)


@pytest.mark.thorough
def test_scores_of_answers_that_are_right_wrong_unreadable_and_not_judged(tmp_path: Path) -> None:
    """Judged from a recorded model: columns come from the metadata, and a missing verdict counts nowhere."""
    said = [r"<think>1</think> so \boxed{7}", r"\boxed{8}", "I give up", r"\boxed{7}", r"\boxed{7}", r"\boxed{67}"]
    targets = ["7", "7", "7", "7", ["6", "7"], ["6", "7"]]
    samples = [
        Sample(id=i, input=text, target=target) for i, (text, target) in enumerate(zip(said, targets, strict=True))
    ]
    samples[3].metadata = {"answer": {}}

    @solver
    def recorded_answers() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            state.output = ModelOutput.from_content("recorded", state.input_text)
            return state

        return solve

    scorer = reward_scorer("MathVerifier")
    log = evaluate(Task(dataset=samples, solver=recorded_answers(), scorer=scorer), get_model("none"), tmp_path)
    scorer.close()
    assert accuracy(log) == pytest.approx(2 / 5)
    scores = [sample.scores["reward_scorer"] for sample in log.samples or ()]
    assert [score.value for score in scores[:3]] == ["C", "I", "N"]
    assert scores[3].value != scores[3].value  # not a number: not judged
    assert scores[3].metadata["status"] == "missing"
    assert [score.value for score in scores[4:]] == ["C", "I"]  # any of several targets, not all in a row


def declared() -> importlib.metadata.EntryPoint:
    """As pyproject.toml declares it; an installed copy may belong to another checkout."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["inspect_ai"]
    ((name, value),) = found.items()
    return importlib.metadata.EntryPoint(name, value, "inspect_ai")


def installed(folder: Path) -> Path:
    """A folder for ``sys.path`` with the metadata of an editable install of this checkout."""
    point, metadata = declared(), folder / "path" / "gspo_lightning-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gspo_lightning\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[inspect_ai]\n{point.name} = {point.value}\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": True}}))
    return metadata.parent


@pytest.mark.thorough
def test_the_entry_point_resolves(tmp_path: Path) -> None:
    """In a process of its own: here the checkout's root comes first, where a build leaves metadata without a URL."""
    assert declared().name == "gspo_lightning"  # Inspect loads only this package's for gspo_lightning/reward_scorer
    assert declared().load() is entry
    found = run(
        "-c",
        "import sys\nfrom inspect_ai._util.registry import registry_lookup\n"
        "assert not any(name.startswith('gspo_lightning') for name in sys.modules)\n"
        "print(registry_lookup('scorer', 'gspo_lightning/reward_scorer').__module__)\n"
        "print(registry_lookup('modelapi', 'gspo_lightning/gspo') is not None)",
        path=installed(tmp_path),
        cwd=tmp_path,
    )
    assert found.stdout.split() == ["gspo_lightning.commands.inspect.scorer", "True"], found.stderr


def run(*words: object, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}", "INSPECT_DISPLAY": "plain"}
    return subprocess.run(
        [sys.executable, *map(str, words)], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.thorough
def test_inspect_without_its_extra_names_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "inspect_ai.py").write_text("raise ImportError('not here')\n")
    found = run("-c", "import gspo_lightning.commands.inspect", path=tmp_path, cwd=tmp_path)
    assert found.returncode != 0
    assert found.stderr.splitlines()[-2:] == [
        "gspo_lightning.core.errors.UserError: gspo_lightning.commands.inspect: needs inspect-ai",
        "  fix: pip install 'inspect-ai>=0.3.200'",
    ]


@pytest.mark.thorough
@pytest.mark.long
def test_the_command_line_of_inspect(taught: Path, tmp_path: Path) -> None:
    (tmp_path / "some_task.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\n"
        "from gspo_lightning.commands.inspect import reward_scorer\n\n\n@task\ndef one():\n"
        "    return Task(dataset=[Sample(input='3+4:', target='7')], scorer=reward_scorer('ExactMatch'))\n"
    )
    model = f"gspo/{taught / 'checkpoints' / 'last.ckpt'}"
    words = ("eval", "some_task.py", "--model", model, "--temperature", "0", "--max-tokens", "32", "--log-dir", "logs")
    path = installed(tmp_path)
    done = run("-m", "inspect_ai", *words, path=path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(file))
    assert log.status == "success"
    refused = run("-m", "inspect_ai", "eval", "some_task.py", "--model", "gspo/absent.ckpt", path=path, cwd=tmp_path)
    assert "'absent.ckpt' does not exist" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr
