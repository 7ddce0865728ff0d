"""Every file that a run writes, with a disk that is full, read-only, or has lost the file: nothing is silent or lost.

The list is made by a run, and then tried whole: on a disk of its own (a tmpfs of 64 MiB), which is really full or
read-only from the moment at which the file is written.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.temp_files import alive
from tests.runs import runs
from tests.runs.faulty import key
from tests.runs.processes import run_module

OPTIONS = [
    *runs.UNTAUGHT, "--trainer.num_sanity_val_steps=-1", "--data.record_rollouts=true", "--trainer.max_epochs=3",
    "--trainer.check_val_every_n_epoch=1", "--data.prompts_per_rollout=4", "--data.evaluation.limit=8",
]  # fmt: skip
SAVES = '--trainer.callbacks+={"class_path": "LastCheckpoint", "init_args": {"every_n_iterations": 1}}'
FAULTS = ("full", "read-only", "removed")
WRONG = ("silent", "lost", "called a bug")
WITHOUT_CONTENT = (".lock", ".lock.json", "checkpoints/last.ckpt", "rollouts/N.jsonl", "events.out.tfevents.N.vm.N.N")
"""Files whose removal is none of a run's concern: locks and links, recorded iterations that somebody has taken away,
and events, all of which stand in ``scalars.jsonl``."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        yield place
    finally:
        for run in place.glob("*/quickstart/version_*"):
            subprocess.run(["umount", "-q", str(run)], check=False)
        subprocess.run(["umount", "-l", str(place)], check=True)


def fit(root: Path, *more: str) -> tuple[int, str]:
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, SAVES, f"--trainer.default_root_dir={root}"]
    ended = run_module("gspo_lightning", *argv, *more, seconds=120.0)
    return ended.returncode, ended.stderr


def files(run: Path) -> dict[str, int]:
    """Name without numbers -> bytes of all such files."""
    sizes = Counter[str]()
    for path in run.rglob("*"):
        if path.is_file():
            sizes[key(str(path.relative_to(run)))] += path.stat().st_size
    return dict(sizes)


def scalars(run: Path) -> Any:
    return {tag: [step for step, _ in values] for tag, values in runs.scalars(run).items() if "time" not in tag}


def outcome(disk: Path, whole: Path, name: str, fault: str) -> tuple[str, str]:
    """What became of a run whose file met a fault, in a word (see :data:`WRONG`), with the reason."""
    root = disk / re.sub(r"\W", "-", f"{name}-{fault}")
    run = root / "quickstart" / "version_0"
    content = {"class_path": "tests.runs.faulty.Faulty"}
    content |= {"init_args": {"disk": str(disk), "target": name, "fault": fault}}
    code, said = fit(root, f"--trainer.callbacks+={json.dumps(content)}")
    (disk / "filler").unlink(missing_ok=True)
    subprocess.run(["umount", "-q", str(run)], check=False, stderr=subprocess.DEVNULL)
    if "broken: " not in said:
        return "not written", "behind the second update"
    said = re.sub(r"broken: .*", "", said)
    if "Traceback" in said or "did not expect" in said:
        return "called a bug", said[-1500:]
    if code != 0 and "error: " not in said:
        return "silent", f"exit code {code}: {said[-300:]}"
    if code != 0:
        code, again = fit(root, "--ckpt_path=last", "--allow_changed_config=true")
        run = max(root.glob("quickstart/version_*"))
        if code != 0 or runs.largest_difference(runs.weights(run), runs.weights(whole)) != 0.0:
            return "lost", f"the resume ended with {code}: {again[-400:]}"
        return ("named", "resumed to the end") if scalars(run) == scalars(whole) else ("lost", "numbers of the run")
    before, after = files(whole).get(name, 0), files(run).get(name)
    short = after is None or (name.endswith(".jsonl") and after < 0.9 * before)
    named = Path(name).name.split("N")[0].strip("-.") in said or "No space left" in said or "Read-only" in said
    if short and not named and name not in WITHOUT_CONTENT:
        return "silent", f"{after} bytes, not {before}"
    return "whole" if not short else "named", f"exit code 0: {said[-200:]}"


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a disk")
def test_every_file_with_every_fault(disk: Path, record_property: Any) -> None:
    code, said = fit(disk / "whole")
    assert code == 0, said
    whole = disk / "whole" / "quickstart" / "version_0"
    names = sorted(files(whole))
    assert {"scalars.jsonl", "rollouts/N.jsonl", "config.yaml", "checkpoints/step-N.ckpt"} <= set(names), names
    found: dict[str, list[str]] = {}
    for name in names:
        for fault in FAULTS:
            word, why = outcome(disk, whole, name, fault)
            found.setdefault(word, []).append(f"{name} x {fault}: {why}")
            for root in disk.glob(f"*-{fault}"):
                subprocess.run(["rm", "-rf", str(root)], check=True)
    counts = ", ".join(f"{len(cases)} {word}" for word, cases in found.items())
    report = f"{len(names)} files x {len(FAULTS)} faults: {counts}"
    record_property("faults", report)
    print(report)
    wrong = [f"{word}: {case}" for word in WRONG for case in found.get(word, [])]
    assert not wrong, "\n".join([report, *wrong])


PARALLEL = {
    "cp": ["--config=cp"],
    "ep": ["--config=ep", "--model.name_or_path=tiny-qwen3-moe"],
}


def stopping(**arguments: str) -> str:
    content = {"class_path": "tests.runs.stopping.Stopping", "init_args": arguments}
    return f"--trainer.callbacks+={json.dumps(content)}"


def on_two(root: Path, which: str, *more: str) -> tuple[int, str]:
    """``gspo fit`` on two ranks that it starts itself, as a process whose end is that of a command."""
    argv = [sys.executable, "-m", "gspo_lightning", "fit", f"--config={runs.QUICKSTART}", *PARALLEL[which], *runs.SMALL]
    argv += [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.accelerator=cpu"]
    argv += ["--trainer.devices=2", f"--trainer.default_root_dir={root}", *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        argv, cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return ended.returncode, ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("which", sorted(PARALLEL))
def test_a_rank_that_is_stopped_in_every_collective(which: str, tmp_path: Path, record_property: Any) -> None:
    """The other rank ends with a sentence, and nothing is left behind: neither the stopped rank nor a bug."""
    code, said = on_two(tmp_path / "whole", which, stopping(listed=str(tmp_path / "places")))
    assert code == 0, said
    places = sorted(set((tmp_path / "places").read_text().splitlines()))
    assert any("all_to_all_single" in place for place in places), places
    wrong: list[str] = []
    for number, place in enumerate(places):
        root, short = tmp_path / str(number), "--trainer.strategy.timeout_minutes=0.2"
        code, said = on_two(root, which, short, stopping(place=place))
        stopped = re.search(r"stopped: (\d+) in", said)
        if stopped is None or code == 0:
            wrong.append(f"{place}: was not stopped there, or ended with {code}: {said[-300:]}")
        elif "Traceback" in said or "did not expect" in said:
            wrong.append(f"{place}: called a bug: {said[-800:]}")
        elif "error: rank 0 cannot continue: another rank has ended" not in said:
            wrong.append(f"{place}: silent: {said[-300:]}")
        elif alive(int(stopped[1])):
            os.kill(int(stopped[1]), signal.SIGKILL)
            wrong.append(f"{place}: the stopped rank is left behind")
        elif number == 0 and (again := on_two(root, which, "--ckpt_path=last"))[0] != 0:
            wrong.append(f"{place}: lost: {again[1][-300:]}")
    report = f"{which}: a rank stopped in each of {len(places)} collectives ({'; '.join(places)}), {len(wrong)} wrong"
    record_property("stopped", report)
    print(report)
    assert not wrong, "\n".join([report, *wrong])
