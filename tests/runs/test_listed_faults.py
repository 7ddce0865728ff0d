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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.core.temp_files import alive
from tests.runs import runs
from tests.runs.faulty import key
from tests.runs.processes import run_module
from tests.runs.ranks import started

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


def on_two(root: Path, which: str) -> list[str]:
    """Arguments of ``gspo fit`` on two ranks: three iterations of two updates, a checkpoint after each."""
    argv = ["fit", f"--config={runs.QUICKSTART}", *PARALLEL[which], *runs.SMALL, *runs.UNTAUGHT, "--data.val=null"]
    argv += ["--trainer.num_sanity_val_steps=0", "--trainer.accelerator=cpu", "--trainer.max_epochs=3"]
    return [*argv, "--trainer.devices=2", f"--trainer.default_root_dir={root}"]


def stopped_in(place: str, which: str, root: Path) -> str:
    """What is wrong with the end of a run whose rank 1 was stopped there (see :data:`WRONG`); empty: nothing."""
    log = root.with_suffix(".log")
    try:
        code = started([*on_two(root, which), stopping(place=place)], log)
    except TimeoutError:
        code = None
    said = log.read_text()
    stopped = re.search(r"stopped: (\d+) in", said)
    if stopped is None:
        return f"was not stopped there; the run ended with {code}: {said[-300:]}"
    if code is None or alive(int(stopped[1])):
        os.kill(int(stopped[1]), signal.SIGKILL)
        return f"the stopped rank is left behind: {said[-300:]}"
    if "Traceback" in said or "did not expect" in said or "was killed by" in said:  # it was stopped
        return f"called a bug: {said[-800:]}"
    if code == 0 or "error: rank 0 cannot continue: another rank has ended" not in said:
        return f"silent: ended with {code}: {said[-300:]}"
    return ""


def gone_on(which: str, root: Path, whole: Path) -> str:
    """What is wrong with the run when it goes on from its last checkpoint; empty: nothing."""
    log = root.with_suffix(".again.log")
    if started([*on_two(root, which), "--ckpt_path=last", "--allow_changed_config=true"], log) != 0:
        return f"lost: {log.read_text()[-300:]}"
    (run,) = (root / "quickstart").iterdir()
    if runs.largest_difference(runs.weights(run), runs.weights(whole)) != 0.0 or scalars(run) != scalars(whole):
        return "lost: the run that went on is not the one that was not stopped"
    return ""


@pytest.mark.long
@pytest.mark.parametrize("which", sorted(PARALLEL))
def test_a_rank_that_is_stopped_in_every_collective(which: str, tmp_path: Path, record_property: Any) -> None:
    """The other rank ends with a sentence, nothing is left behind, and the run goes on from its last checkpoint."""
    log = tmp_path / "whole.log"
    argv = [*on_two(tmp_path / "whole", which), stopping(listed=str(tmp_path / "places"))]
    assert started(argv, log) == 0, log.read_text()
    places = (tmp_path / "places").read_text().splitlines()
    assert any("all_to_all_single" in place for place in places), places
    whole = tmp_path / "whole" / "quickstart" / "version_0"
    wrong = []
    for number, place in enumerate(places):
        root = tmp_path / str(number)
        if what := stopped_in(place, which, root) or gone_on(which, root, whole):
            wrong.append(f"{place}: {what}")
    report = f"{which}: a rank stopped in each of {len(places)} collectives ({'; '.join(places)}), {len(wrong)} wrong"
    record_property("stopped", report)
    print(report)
    assert not wrong, "\n".join([report, *wrong])
