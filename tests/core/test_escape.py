"""Text of others - prompts, answers, names, errors of servers - on every terminal, page and picture."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from rich.table import Table

from gspo_lightning import cli
from gspo_lightning.cli import main
from gspo_lightning.commands.compare import page as compare_page
from gspo_lightning.commands.data.report import draw as draw_lengths
from gspo_lightning.commands.data.terminal import show as show_counts
from gspo_lightning.commands.doctor.command import _table as doctor_table
from gspo_lightning.commands.doctor.finding import Finding
from gspo_lightning.commands.evaluate.page import write_page
from gspo_lightning.commands.evaluate.table import table as evaluate_table
from gspo_lightning.commands.export.card import card
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.escape import cell, code, escaped_logs, fenced, say, show_exception, terminal, visible
from gspo_lightning.report import side_by_side
from gspo_lightning.report.page import write_report
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.side_by_side import SideBySideData
from gspo_lightning.report.style import save
from gspo_lightning.rollouts.serving.client import Client
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.training.callbacks import summary
from gspo_lightning.training.callbacks.sink import Sink, markdown_table
from gspo_lightning.training.reward_models.export import card as reward_card
from tests.runs import runs
from tests.support.foreign_text import FOREIGN, columns, obeyed, shown
from tests.support.hostile_server import HostileServer
from tests.support.recorded_run import write_run
from tools.rooms import PACKAGE, files

SEEN = visible(FOREIGN)
Captured = pytest.CaptureFixture[str]


def test_escaped_text_is_readable_in_every_kind_of_markdown() -> None:
    assert "[/INST] [red]x = [a, b][/] :smile: \\x1b[31mE\\x1b]0;title\\x07\\x9b2J\\rover \\u202eturned \\u2028" in SEEN
    assert shown(f"a {cell(FOREIGN)} b") == f"a {SEEN} b"
    assert shown(f"# {code(FOREIGN, table=False)}") == SEEN.replace("`", "'")
    table = markdown_table(["a", FOREIGN, "c"], [[FOREIGN, FOREIGN, "z"], ["\r\n", "a\rb\nc", ""]], code={"a"})
    columns(table)
    assert SEEN.replace("`", "'").replace("\\|", "\\¦") in shown(table)
    assert shown(table).count(SEEN) == 2
    assert shown(fenced("```\n# no heading\n<b>")) == ""


# terminals -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which nothing is folded."""
    monkeypatch.setenv("COLUMNS", "2000")


def run_of(value: float = 1.0) -> Run:
    series = Series(np.arange(1, 9), np.linspace(0, value, 8))
    names = ("reward/mean", "clip/tokens", "optim/gradient_norm", "val/accuracy", f"moe/changed{FOREIGN}")
    found = Run(Path(FOREIGN), dict.fromkeys(names, series), {"objective": FOREIGN, "seed": FOREIGN, "model": FOREIGN})
    found.label = FOREIGN
    return found


def sides() -> SideBySideData:
    names = [FOREIGN, f"{FOREIGN}2"]
    row = {"objectives": {n: {"loss": 1.0} for n in names}, "cosines": [[1.0, 0.5], [0.5, 1.0]],
           "sampler_logprob_gap": 0.0}  # fmt: skip
    return SideBySideData(names, dict.fromkeys(names, FOREIGN), [0, 1], [[row, row], [row, row]])


def of_fit() -> None:
    example = dict.fromkeys(("prompt", "answer", "before", "after"), FOREIGN)
    numbers = {"accuracy_before": 0.1, "accuracy_after": 0.9, "reward_after": 1.0, "clip_fraction_tokens": 0.1}
    effort = {"iterations": 1, "updates": 4, "seconds": 2.0, "peak_memory_mb": 9.0}
    found = {**numbers, **effort, "objective": FOREIGN, "seed": FOREIGN, "examples": [example]}
    summary.show(found, Path(FOREIGN), FOREIGN, [FOREIGN], Path(FOREIGN))


def of_evaluate() -> None:
    evaluate_table(results())


def results() -> dict[str, Any]:
    metric = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 3, "these_problems": {"low": 0.45, "high": 0.55}}
    run = {"notes": {FOREIGN: [FOREIGN]}, "suites": {FOREIGN: {"problems": 3, "window": FOREIGN}}}
    return {"run": {**run, "versions": {"torch": FOREIGN}}, FOREIGN: {FOREIGN: metric}}


TERMINAL: dict[str, Callable[[], object]] = {
    "fit": of_fit,
    "validate": lambda: summary.show_evaluation({FOREIGN: 0.5}),
    "evaluate": of_evaluate,
    "compare": lambda: terminal().print(compare_page.summary_table({FOREIGN: {1: run_of()}, "b": {1: run_of(2)}})),
    "compare --rollouts": lambda: terminal().print(side_by_side.summary_table(sides())),
    "data": lambda: show_counts(FOREIGN, {FOREIGN: 1}, 2),
    "doctor": lambda: terminal().print(doctor_table(FOREIGN, [Finding("ok", FOREIGN, FOREIGN, FOREIGN)])),
    "any table": lambda: terminal().print(Table(FOREIGN, title=FOREIGN, caption=FOREIGN)),
    "any line": lambda: say(FOREIGN),
    "a line of rich": lambda: terminal(soft_wrap=True).print(FOREIGN, style="bold"),
    "a traceback": lambda: show_exception(ValueError, ValueError(FOREIGN), None),
}


@pytest.mark.parametrize("command", TERMINAL)
def test_terminal_escapes_foreign_text(command: str, capsys: Captured) -> None:
    TERMINAL[command]()
    found = "".join(capsys.readouterr())
    assert SEEN in found
    assert not obeyed(found)


@pytest.mark.parametrize(
    "error", [UserError(FOREIGN, FOREIGN, fix=FOREIGN), InfrastructureError(FOREIGN), ValueError(FOREIGN)]
)
def test_error_message_escapes_foreign_text(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.setattr(cli, "mistake_of_plugin", lambda error: None)  # this file is no plug-in
    assert main(["anything"]) in (1, 2)
    found = capsys.readouterr().err
    assert SEEN in found
    assert not obeyed(found)


def test_traceback_escapes_foreign_text(tmp_path: Path) -> None:
    script = "import sys; sys.argv[1:] = ['export', sys.argv[1], 'out', '--traceback']; "
    script += "from gspo_lightning.cli import entry_point; entry_point()"
    name = FOREIGN.replace("/", "").replace("\x00", "")
    done = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, check=False)
    assert "UserError" in done.stderr
    assert visible(name) in done.stderr
    assert not obeyed(done.stderr)


def test_log_lines_and_warnings_escape_foreign_text(capsys: Captured) -> None:
    handler = logging.StreamHandler(sys.stderr)
    with escaped_logs(), warnings.catch_warnings():
        warnings.simplefilter("always")
        for name in ("gspo_lightning.x", "somebody.else"):
            logger = logging.getLogger(name)
            logger.addHandler(handler)
            before, logger.propagate = logger.propagate, False  # a command of another test may have left a handler
            logger.warning("said: %s", FOREIGN)
            logger.removeHandler(handler)
            logger.propagate = before
        print(warnings.formatwarning(FOREIGN, UserWarning, "a.py", 1, ""), file=sys.stderr)
    found = capsys.readouterr().err
    assert found.count(SEEN) == 3
    assert not obeyed(found)
    assert logging.getLogRecordFactory() is logging.LogRecord


PLUGIN = """
import logging
from gspo_lightning.rewards import Reward, Score

class Talkative(Reward):
    def score(self, sample):
        logging.getLogger("a.library").error("cannot parse %s", sample.completion)
        return Score(1.0)
"""


def test_logs_of_a_reward_worker_escape_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talkative.py").write_text(PLUGIN)
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": 1, "prompt": "", "completion": FOREIGN, "answer": ""}) + "\n")
    names = {"--input": "in.jsonl", "--output": "out.jsonl", "--plugins": "talkative.py"}
    files = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert main(["score", "--reward", "Talkative", "--workers", "1", *files]) == 0
    said = capfd.readouterr().err
    assert SEEN in said
    assert set(obeyed(said)) <= {"\r"}  # of the progress bar


@pytest.mark.parametrize("status", [400, 500, 403])
def test_health_error_of_a_server_is_escaped(status: int) -> None:
    loop = LoopThread("test")
    with HostileServer(lambda: [FOREIGN.encode()], {}, status) as server:
        client = Client(Endpoint(server.url), 5.0, 5.0)
        said = loop.run(client.ailment())
        loop.run(client.close())
    loop.close()
    assert f"status {status}" in said
    assert not obeyed(said)


@pytest.mark.thorough
def test_a_run_with_tokens_of_chat_templates_ends_well(tmp_path: Path, capsys: Captured) -> None:
    prompts = [{"prompt": f"{i}+1:", "answer": f"[INST] {i} x = [a, b] \x1b[31m [/INST]"} for i in range(16)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(p) + "\n" for p in prompts))
    data = [f"--data.train={file}", f"--data.val={file}", "--data.max_prompt_tokens=64", "--trainer.max_epochs=1"]
    runs.fit(tmp_path / "out", *runs.UNTAUGHT, *data)
    out = capsys.readouterr()
    assert "x = [a, b] \\x1b[31m [/INST]" in out.out
    assert not obeyed(out.out)


# pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nasty_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "a|b `c` [d] $\\frac$ $e$")
    summary_file = folder / "summary.json"
    found = json.loads(summary_file.read_text())
    found |= {"objective": FOREIGN, "seed": FOREIGN, "model": FOREIGN}
    found["examples"] = [dict.fromkeys(("prompt", "answer", "before", "after"), FOREIGN)]
    summary_file.write_text(json.dumps(found))
    alarm = {"signature": FOREIGN, "since": 3, "update": 4, "what": FOREIGN, "action": FOREIGN}
    (folder / "alarms.json").write_text(json.dumps([alarm]))
    rows = [dict.fromkeys(("id", "prompt", "answer", "completion"), FOREIGN) | {"update": u} for u in (0, 8)]
    (folder / "held_out_answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_report_escapes_foreign_text(nasty_run: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", str(nasty_run), "--output", str(tmp_path)]) == 0
    assert not obeyed(capsys.readouterr().out)
    page = (tmp_path / "report.md").read_text()
    columns(page)
    found = shown(page)
    assert f"Model {visible(Path(FOREIGN).name)}, " in found
    assert found.count(SEEN.replace("`", "'").replace("\\|", "\\¦")) >= 4


@pytest.mark.thorough
def test_report_of_several_runs_escapes_foreign_text(nasty_run: Path, tmp_path: Path, capsys: Captured) -> None:
    other = write_run(tmp_path / "other")
    write_report([nasty_run, other], tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text()
    columns(page)
    shown(page)
    assert main(["report", str(nasty_run), str(other), "--output", str(tmp_path / "out")]) == 0
    assert not obeyed(capsys.readouterr().out)


def test_comparison_pages_escape_foreign_text(tmp_path: Path) -> None:
    compared = {FOREIGN: {1: run_of(), 2: run_of()}, "b": {1: run_of(2), 2: run_of(3)}}
    for page in (
        compare_page.page(compared, f"gspo compare ```{FOREIGN}", "report.png"),
        side_by_side.page(sides(), f"gspo compare ```{FOREIGN}", "report.png"),
    ):
        columns(page)
        assert SEEN in shown(page)


def test_evaluation_page_escapes_foreign_text(tmp_path: Path) -> None:
    write_page(tmp_path, results())
    page = (tmp_path / "report.md").read_text()
    columns(page)
    found = shown(page.replace("*Problems like these*", "").replace("*These problems*", ""))
    assert found.count(SEEN) == 5  # name, window, metric, note, version


def test_model_cards_escape_foreign_text() -> None:
    config = {
        "model": {"name_or_path": FOREIGN, "objective": FOREIGN, "optimizer": {"class_path": f"x.{FOREIGN}"}},
        "data": {"train": FOREIGN, "rewards": {FOREIGN: FOREIGN}, "system_prompt": f"```\n# x\n{FOREIGN}",
                 "temperature": FOREIGN, "batch_size": FOREIGN},
    }  # fmt: skip
    data = {"train": {"prompts": 1, "sha256": "a" * 64}}
    content = {
        "global_step": 1, "epoch": 0, "config": config, "updates": 1, "results": None, "reads": "chat",
        "gspo_lightning": {"model": {"name_or_path": FOREIGN, "lora": {"r": FOREIGN}}, "objective": FOREIGN},
        "gspo_run": {"config": config, "data": data, "versions": {"torch": FOREIGN}},
        "data": data, "versions": {"torch": FOREIGN}, "picture": None,
    }  # fmt: skip
    for text in (card(content, [results()]), reward_card(content)):
        body = text.split("---\n", 2)[2]
        columns(body)
        assert SEEN in shown(body)


def test_tensorboard_tables_escape_foreign_text(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="run")
    sink = Sink([logger])
    sink.table("samples", ["a", "b"], [[FOREIGN, FOREIGN]], 1, code=("a",))
    logger.finalize("success")
    (event,) = runs.events(tmp_path / "run").Tensors("samples/text_summary")
    page = event.tensor_proto.string_val[0].decode()
    columns(page)
    assert SEEN in shown(page)


# pictures --------------------------------------------------------------------------------------------------------


def drawn_by_hand() -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 10], [1, 100], label=FOREIGN)
    axes.set_yscale("log")
    axes.set_xticks([1, 2], [FOREIGN, "b"])
    axes.set_title(FOREIGN, loc="left")
    axes.annotate(FOREIGN, (1, 1))
    axes.legend(title=FOREIGN)
    figure.text(0, 0, FOREIGN)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "any": drawn_by_hand,
    "compare": lambda: compare_page.draw({FOREIGN: {1: run_of()}, "b": {1: run_of(2)}}),
    "compare --rollouts": lambda: side_by_side.draw(sides()),
}


@pytest.mark.thorough("compare", "compare --rollouts")
@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_takes_no_text_for_a_formula(name: str, tmp_path: Path) -> None:
    figure = FIGURES[name]()
    save(figure, tmp_path / "a.png")
    save(figure, tmp_path / "a.png")
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_parse_math"))]
    assert SEEN in texts
    assert not obeyed("".join(texts).replace("\n", ""))


def test_ticks_of_numbers_stay_formulas(tmp_path: Path) -> None:
    figure = drawn_by_hand()
    save(figure, tmp_path / "a.png")
    assert "$\\mathdefault{10^{1}}$" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_a_picture_of_prompts_takes_no_text_for_a_formula(tmp_path: Path) -> None:
    draw_lengths(tmp_path / "a.png", np.array([1, 5, 9]), FOREIGN, 4, {FOREIGN: 2})
    assert (tmp_path / "a.png").is_file()


# nothing goes past it --------------------------------------------------------------------------------------------

CHILDREN = ("rewards/sandbox/inside/", "rewards/gym/generate.py", "rollouts/gateway/verifiers_worker.py")
"""Programs that run in processes of their own and write to pipes of this package."""
OURS_ALONE = {"commands/doctor/command.py": "Text: the state of a finding, one of three words"}
PAGES = {
    "training/callbacks/sink.py", "commands/compare/page.py", "commands/evaluate/comparison.py",
    "commands/evaluate/page.py", "commands/export/card.py", "core/metric_table/table.py", "report/page.py",
    "report/side_by_side.py", "training/reward_models/export.py",
}  # fmt: skip
"""Whoever writes tables of Markdown; core/metric_table/table.py writes the site's from this package's own words."""


def past(name: str, tree: ast.Module) -> list[str]:
    """What a file of the package says to a terminal or a picture past ``gspo_lightning.core.escape``."""
    found = []
    for node in ast.walk(tree):
        words = ast.unparse(node) if isinstance(node, ast.Call | ast.ImportFrom | ast.Import) else ""
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "rich":
            allowed = node.module == "rich.table" or name in OURS_ALONE
            found += [] if allowed else [words]
        elif isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "rich" for alias in node.names):
            found.append(words)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            found += [words] if called == "print" or called.startswith(("sys.stdout.wr", "sys.stderr.wr")) else []
            found += [words] if called.startswith("traceback.print") else []
            found += [words] if called.endswith(".savefig") and name != "report/style.py" else []
            if called.split(".")[-1] in ("tqdm", "set_description", "trange"):
                texts = [*node.args, *(k.value for k in node.keywords if k.arg == "desc")]
                said = [text for text in texts if isinstance(text, ast.JoinedStr | ast.Attribute | ast.Subscript)]
                found += [words for _ in said]
    return found


@pytest.mark.thorough
def test_no_module_prints_or_saves_without_escaping() -> None:
    wrong = []
    for file in files():
        name = file.relative_to(PACKAGE).as_posix()
        if name != "core/escape.py" and not name.startswith(CHILDREN):
            wrong += [f"{name}: {words[:80]}" for words in past(name, ast.parse(file.read_text(encoding="utf-8")))]
    assert not wrong, "use say, terminal, visible (gspo_lightning.core.escape) and save (report.save):\n" + "\n".join(
        wrong
    )


@pytest.mark.parametrize(
    "source",
    [
        "print(1)", "from rich.console import Console", "import rich", "from rich import print", "figure.savefig(a)",
        "import sys; sys.stderr.write(a)", "traceback.print_exc()", "tqdm(desc=suite.name)",
        "bar.set_description(f'{a}')",
        "from rich.markup import escape", "from rich.progress import track", "from rich.text import Text",
    ],
)  # fmt: skip
def test_output_that_bypasses_escaping_is_detected(source: str) -> None:
    assert past("report/new.py", ast.parse(source))


@pytest.mark.thorough
def test_every_module_that_writes_markdown_has_an_escaping_test() -> None:
    found = set()
    for file in files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(("| ", "|---")):
                found.add(file.relative_to(PACKAGE).as_posix())
    assert found == PAGES, "a new page of Markdown: its texts go through cell, code or fenced, and it is read above"
