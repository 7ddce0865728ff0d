"""``gspo score``: statuses per line, order, streaming, and what is said about bad input."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning import cli
from gspo_lightning.commands.score import build_reward, main
from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import ExactMatch, FunctionReward
from tests import ROOT


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def run(files: tuple[Path, Path], *options: str) -> list[dict[str, Any]]:
    assert main(["--input", str(files[0]), "--output", str(files[1]), "--workers", "1", *options]) == 0
    return [json.loads(line) for line in files[1].read_text(encoding="utf-8").splitlines()]


@pytest.mark.thorough
def test_a_verdict_per_line_in_the_same_order(files: tuple[Path, Path]) -> None:
    records = [
        {"id": 1, "prompt": "6*7", "completion": "\\boxed{42}", "answer": "42"},
        {"id": "two", "prompt": "6*7", "completion": "\\boxed{41}", "answer": "42"},
        {"id": "empty", "prompt": "6*7", "completion": "", "answer": "42"},
        {"id": "null bytes", "prompt": "\x00", "completion": "\x00\\boxed{42}\x00", "answer": "42"},
        {"id": "megabyte", "prompt": "", "completion": "x" * 1_000_000 + "\\boxed{42}", "answer": "42"},
        {"id": "no answer", "prompt": "", "completion": "\\boxed{42}"},
        {"id": "null answer", "prompt": "", "completion": "\\boxed{42}", "answer": None},
        {"id": "number", "prompt": "", "completion": "\\boxed{42}", "answer": 42},
        {"prompt": "", "completion": "\ud800", "answer": "42"},
    ]
    write(files[0], *records)
    found = run(files, "--reward", "MathVerifier")
    assert [line["id"] for line in found] == [r.get("id", 9) for r in records]
    assert [line["reward"] for line in found] == [1.0, 0.0, 0.0, 1.0, 1.0, None, None, 1.0, 0.0]
    assert [line["status"] for line in found] == ["ok"] * 5 + ["missing"] * 2 + ["ok"] * 2
    assert found[5]["detail"] == "the record has no column 'answer'"
    assert all(set(line) == {"id", "reward", "status", "detail"} for line in found)


def said_outside_thoughts(unfinished_thought: list[bool], completions: list[str]) -> list[float]:
    return [float(not thinking) for thinking, _ in zip(unfinished_thought, completions, strict=True)]


@pytest.mark.thorough("FunctionReward")
@pytest.mark.parametrize("reward", ["ExactMatch", "FunctionReward"])
def test_an_open_thought_is_none_that_a_line_does_not_deny(reward: str, files: tuple[Path, Path]) -> None:
    write(
        files[0],
        {"completion": "<think>#4", "answer": "4"},  # the text shows what training reads in the tokens
        {"completion": "<think></think>#4", "answer": "4"},
        {"completion": "#4", "answer": "4", "unfinished_thought": True},
        {"completion": "<think>#4", "answer": "4", "unfinished_thought": False},
    )
    path = f"{__name__}.said_outside_thoughts"
    named = reward if reward == "ExactMatch" else f'FunctionReward:{{"function": "{path}"}}'
    assert [line["reward"] for line in run(files, "--reward", named)] == [0.0, 1.0, 0.0, 1.0]


def test_halves_of_characters_in_tests_and_programs_are_graded(files: tuple[Path, Path]) -> None:
    """The sandbox takes UTF-8 only: both are escaped alike."""
    answer = {"type": "stdin", "tests": [{"input": "7 \ud83d", "output": "7 \ud83d"}]}
    write(
        files[0],
        {"completion": "```python\nprint(input())\n```", "answer": answer},
        {"completion": "```python\nprint('\ud83d')\n```", "answer": answer},
    )
    assert [line["reward"] for line in run(files, "--reward", "CodeExecutor")] == [1.0, 0.0]


def test_a_hanging_answer_is_a_timeout_on_its_own_line(files: tuple[Path, Path]) -> None:
    write(files[0], *({"id": i, "completion": "a" * (40 if i == 5 else 1) + "!"} for i in range(10)))
    found = run(files, "--reward", 'FormatReward:{"pattern": "(a+)+b", "full_match": false}', "--deadline", "0.3")
    assert [line["status"] for line in found] == ["ok"] * 5 + ["timeout"] + ["ok"] * 4
    assert [line["reward"] for line in found] == [0.0] * 10


def test_more_lines_than_a_batch_and_blank_ones(files: tuple[Path, Path]) -> None:
    lines = [json.dumps({"id": i, "completion": f"#{i % 3}", "answer": "1"}) for i in range(1500)]
    files[0].write_text("\n\n".join(lines), encoding="utf-8")
    found = run(files, "--reward", "ExactMatch")
    assert [line["reward"] for line in found] == [float(i % 3 == 1) for i in range(1500)]


@pytest.mark.thorough
def test_many_megabytes_have_a_status_each(files: tuple[Path, Path]) -> None:
    grid = {"House 1": {"Name": "Eric"}}
    texts = ["{" * 1_000_000, "x" * 1_000_000, "\x00" * 1_000_000, json.dumps({"solution": grid}), " " * 1_000_000]
    write(files[0], *({"id": i, "completion": text, "answer": grid} for i, text in enumerate(texts * 5)))
    found = run(files, "--reward", 'LogicPuzzle:{"family": "zebra"}')
    assert [line["reward"] for line in found] == [0.0, 0.0, 0.0, 1.0, 0.0] * 5
    assert {line["status"] for line in found} == {"ok"}


def test_a_late_malformed_line_is_named_by_its_number(files: tuple[Path, Path]) -> None:
    lines = [json.dumps({"completion": "#1", "answer": "1"})] * 1700
    lines[1602] = lines[1602][:-1]
    files[0].write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"in.jsonl:1603: is not JSON"):
        run(files, "--reward", "ExactMatch")
    assert os.listdir(files[0].parent) == ["in.jsonl"]


def test_several_rewards_are_added_up(files: tuple[Path, Path]) -> None:
    write(files[0], {"id": 1, "completion": "#42", "answer": "42"})
    exact = 'ExactMatch:{"marker": ""}'
    found = run(files, "--reward", "ExactMatch", "--reward", exact, "--reward", 'FormatReward:{"pattern": "#.*"}')
    assert found[0]["reward"] == 2.0
    assert found[0]["parts"] == {"ExactMatch": 1.0, "ExactMatch_2": 0.0, "FormatReward": 1.0}


def test_plug_ins(files: tuple[Path, Path], tmp_path: Path) -> None:
    plugin = tmp_path / "polite_reward.py"
    plugin.write_text(
        "from gspo_lightning.rewards import Reward\n\n\nclass PoliteForScoreTest(Reward):\n"
        "    def score(self, completion: str, answer: str, bonus: float = 0.0) -> float:\n"
        "        return ('please' in completion) + bonus\n"
    )
    write(
        files[0],
        {"id": 1, "completion": "please", "answer": "", "bonus": 0.5},
        {"id": 2, "completion": "now", "answer": ""},
    )
    found = run(files, "--reward", "PoliteForScoreTest", "--plugins", str(plugin))
    assert [line["reward"] for line in found] == [1.5, 0.0]


def test_the_shipped_example(files: tuple[Path, Path]) -> None:
    write(files[0], {"id": 1, "completion": "x" * 25})
    plugin = ROOT / "plugins" / "brevity.py"
    found = run(files, "--reward", 'Brevity:{"max_characters": 100}', "--plugins", str(plugin))
    assert found[0]["reward"] == 0.75


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"completion": ', r"in.jsonl:2: is not JSON"),
        ("[1]", r"in.jsonl:2: is a JSON list"),
        ('{"id": 7}', r"in.jsonl:2: has no 'completion'; it has id"),
        ('{"completion": null}', r"in.jsonl:2: 'completion' is a NoneType"),
        ('{"completion": "", "prompt": ["a"]}', r"in.jsonl:2: 'prompt' is a list"),
        ("\udcff", r"in.jsonl:2: is not JSON"),
        ("[" * 100_000, r"in.jsonl:2: is not JSON"),
    ],
)
def test_a_malformed_line_is_named_and_nothing_is_written_over(
    files: tuple[Path, Path], line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_bytes(b'{"completion": "#1", "answer": "1"}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    files[1].write_text("what was there")
    arguments = ["score", "--reward", "ExactMatch", "--input", str(files[0]), "--output", str(files[1])]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    with pytest.raises(UserError, match=message):
        main(arguments[1:])
    assert "Traceback" not in error
    assert files[1].read_text() == "what was there"
    assert sorted(os.listdir(files[0].parent)) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("MathVerifer", "did you mean MathVerifier"),
        ("no.such.Reward", "no.such"),
        ("ExactMatch:{", "is not JSON"),
        ("ExactMatch:[1]", "is not a JSON object"),
        ('ExactMatch:{"markr": "#"}', "'markr' is not a parameter; did you mean marker"),
        ('ExactMatch:{"exactly_one": "perhaps"}', "exactly_one"),
        ("FormatReward", "the parameter 'pattern' is missing"),
        ('FormatReward:{"pattern": "("}', "not a regular expression"),
        ('FunctionReward:{"function": "no_such_module.f"}', "there is no module 'no_such_module'"),
    ],
)
def test_a_wrong_reward_is_refused(specification: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_reward(specification)


def test_rewards_are_built_from_short_names_and_dotted_paths() -> None:
    assert isinstance(build_reward("ExactMatch"), ExactMatch)
    dotted = build_reward('gspo_lightning.rewards.exact.ExactMatch:{"marker": "=:="}')
    assert isinstance(dotted, ExactMatch)
    assert dotted.marker == "=:="
    assert isinstance(build_reward('FunctionReward:{"function": "json.dumps", "where": "trainer"}'), FunctionReward)


def test_missing_files_are_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--input.*does not exist"):
        run(files, "--reward", "ExactMatch")
    write(files[0])
    with pytest.raises(UserError, match="--output"):
        run((files[0], tmp_path / "no" / "folder.jsonl"), "--reward", "ExactMatch")
    assert run(files, "--reward", "ExactMatch") == []


@pytest.mark.thorough
def test_the_console_command_scores_without_torch(files: tuple[Path, Path], tmp_path: Path) -> None:
    plugin = tmp_path / "sees_torch.py"
    plugin.write_text(
        "import sys\nfrom gspo_lightning.rewards import Reward\n\n\nclass SeesTorchForScoreTest(Reward):\n"
        "    def score(self, completion: str) -> float:\n        return float('torch' in sys.modules)\n"
    )
    write(files[0], {"id": 1, "completion": ""})
    script = Path(sys.executable).with_name("gspo")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "gspo_lightning"]
    arguments = ["--reward", "SeesTorchForScoreTest", "--plugins", str(plugin), "--workers", "1"]
    found = subprocess.run(
        [*command, "score", *arguments, "--input", str(files[0]), "--output", str(files[1])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert "mean reward 0.0000; 1 ok" in found.stdout
    assert json.loads(files[1].read_text())["reward"] == 0.0


def descendants(pid: int) -> list[int]:
    """Processes below a process, whatever their session."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    stack = [pid]
    while stack:
        below = children.get(stack.pop(), [])
        found += below
        stack += below
    return found


def living(pids: list[int]) -> list[int]:
    """Those that are there and no zombies."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
    return found


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For temporary files of programs that run as another user, who cannot look into pytest's folders."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.thorough("landlock")
@pytest.mark.parametrize("isolation", ["bubblewrap", "landlock"])
def test_a_kill_leaves_no_process_and_the_next_start_no_file(
    isolation: str, files: tuple[Path, Path], tmp_path: Path, scratch: Path
) -> None:
    """The programs that are being tried have not ended by themselves: each would run for a minute."""
    program = "while True:\n    pass"
    answer = {"type": "stdin", "tests": [{"input": "", "output": "1"}], "timeout_s": 60}
    write(files[0], *({"id": i, "completion": program, "answer": answer} for i in range(4)))
    try:
        reward = f"CodeExecutor:{json.dumps({'isolation': isolation})}"
        build_reward(reward)
    except UserError:
        pytest.skip(f"{isolation} does not work here: make sandbox; gspo doctor")
    options = ["--input", str(files[0]), "--output", str(files[1]), "--workers", "2", "--reward", reward]
    command = [sys.executable, "-m", "gspo_lightning", "score", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as scoring:
        before: list[int] = []
        until = time.monotonic() + 240
        while len(before) < 6 and time.monotonic() < until:  # two workers, and for each a driver and a program
            time.sleep(0.1)
            before = descendants(scoring.pid)
        time.sleep(0.5)
        before = descendants(scoring.pid)
        scoring.kill()
    assert len(before) >= 6
    until = time.monotonic() + 10
    while living(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert living(before) == []
    assert [p.name for p in tmp_path.glob(".*.unfinished")]  # what had been scored so far
    write(files[0], {"id": 1, "completion": "print(1)", "answer": answer})
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    assert list(scratch.iterdir()) == []


def test_the_input_is_not_written_over(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    source, link = files
    write(source, {"completion": "4", "answer": "4"})
    link.symlink_to(source)
    before = source.read_bytes()
    for output in (source, source.parent / ".." / source.parent.name / source.name, link):
        assert cli.main(["score", "--reward", "ExactMatch", "--input", str(source), "--output", str(output)]) == 2
        assert f"--output: {output} is the input" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_an_output_that_is_no_file_is_refused(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    write(files[0], {"completion": "#1", "answer": "1"})
    assert cli.main(["score", "--input", str(files[0]), "--output", "/dev/null", "--reward", "ExactMatch"]) == 2
    assert "/dev/null cannot be written" in capsys.readouterr().err


def test_a_reward_that_forks_and_returns_is_named(
    files: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "forking.py"
    plugin.write_text(
        "import os\nfrom gspo_lightning.rewards import Reward\n\n\nclass ForksAndReturns(Reward):\n"
        "    def score(self, completion):\n        if os.fork():\n            os.wait()\n        return 1.0\n"
    )
    write(files[0], *({"id": str(i), "prompt": "p", "completion": "x"} for i in range(3)))
    words = ("--input", str(files[0]), "--output", str(files[1]), "--workers=1", "--plugins", str(plugin))
    assert cli.main(["score", "--reward=ForksAndReturns", *words]) == 2
    assert "rewards.ForksAndReturns: forks, and the child comes back from score()" in capfd.readouterr().err
    assert not files[1].exists()
