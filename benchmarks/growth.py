"""What a run costs as it grows: rows of a prompt file, places of the training order, updates.

``python -m benchmarks.growth [rows|order|events] [--rows 1000 1000000] [--updates 10000]`` prints one JSON object. Rows
and updates are those of real ``gspo fit`` processes of their own: nothing is extrapolated but the megabytes per 1,000
updates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from gspo_lightning.data.prompts.order import PromptOrder

SUBJECTS = ("rows", "order", "events")
CONFIG = """\
seed_everything: 1
trainer: {accelerator: cpu, devices: 1, enable_progress_bar: false, max_epochs: 1}
model: {name_or_path: tiny-qwen3, objective: GSPO, optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.01}}}
data:
  rewards: {correct: ExactMatch}
  reward_workers: 1
  group_size: 2
  prompts_per_rollout: 4
  minibatches_per_rollout: 4
  max_prompt_tokens: 16
  max_response_tokens: 4
  max_tokens_per_micro_batch: 4096
"""


def write_rows(file: Path, count: int) -> None:
    """Arithmetic, with an answer and a sentence beside it: about 120 bytes a row."""
    draw = random.Random(0)
    with open(file, "w", encoding="utf-8") as out:
        for number in range(count):
            a, b, c, d = (draw.randrange(10) for _ in range(4))
            row = {"prompt": f"{a}+{b}*{c}-{d}:", "answer": str(((a + b) * c - d) % 10), "id": f"row-{number:09d}"}
            out.write(json.dumps(row | {"source": "arithmetic modulo ten, from left to right"}) + "\n")


def command(*arguments: str) -> dict[str, float]:
    """``gspo`` in a process of its own: CPU seconds with its children, wall seconds, peak resident set."""
    begun = time.perf_counter()
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gspo_lightning", *arguments], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(said.decode()[-2000:])
    seconds = time.perf_counter() - begun
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "wall_s": round(seconds, 1),
        "peak_mib": round(used.ru_maxrss / 1024),
    }


def fit(folder: Path, *arguments: str) -> dict[str, float]:
    config = folder / "growth.yaml"
    config.write_text(CONFIG)
    return command("fit", f"--config={config}", f"--trainer.default_root_dir={folder / 'runs'}", *arguments)


def rows(counts: Sequence[int]) -> dict[str, Any]:
    """One iteration of four updates on a file of so many rows: JSON lines, Parquet, and with a curriculum.

    ``reading_s`` are the CPU seconds that it takes to read the file, parse every row and encode its prompt once, in a
    process that does nothing else.
    """
    found: dict[str, Any] = {}
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name, "rows.jsonl")
            write_rows(file, count)
            parquet = file.with_suffix(".parquet")
            _to_parquet(file, parquet)
            quiet = '--trainer.callbacks=[{"class_path": "RunSummary", "init_args": {"report": false}}]'
            for kind, path, more in (
                ("jsonl", file, []),
                ("parquet", parquet, []),
                ("jsonl, Informative", file, ["--data.curriculum=Informative"]),
            ):
                reading = {"reading_s": _reading(path), "file_mb": round(path.stat().st_size / 1e6, 1)}
                found[f"{count} {kind}"] = fit(Path(name), f"--data.train={path}", quiet, *more) | reading
                print(json.dumps({f"{count} {kind}": found[f"{count} {kind}"]}), file=sys.stderr, flush=True)
    return found


def _to_parquet(file: Path, target: Path) -> None:
    """The same rows, in groups of 100,000."""
    import pyarrow.json
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.json.read_json(file), target, row_group_size=100_000)


READING = """\
import sys, time
from gspo_lightning.policy.load.loading import load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.data.prompts.encode import Encoder
from gspo_lightning.data.prompts.formats import read_rows
tokenizer = load_tokenizer(ModelSettings(name_or_path="tiny-qwen3"))
begun = time.process_time()
for _ in Encoder(tokenizer, None, {}, "data.train").many(read_rows(sys.argv[1])):
    pass
print(time.process_time() - begun)
"""


def _reading(path: Path) -> float:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    said = subprocess.run([sys.executable, "-c", READING, str(path)], env=env, capture_output=True, check=True).stdout
    return round(float(said), 1)


def order(counts: Sequence[int], prompts: int = 32) -> dict[str, Any]:
    """Milliseconds of CPU time for the prompts of an iteration: in turn, in flight (one by one), and its spares."""
    found: dict[str, Any] = {}
    for count in counts:
        there: Any = range(count)
        asked = PromptOrder(there, prompts, 4, seed=1)
        ways = {
            "share_ms": lambda i, o=asked: o.share(i),
            "in_flight_ms": lambda i, o=asked: [o.at(i * prompts + k) for k in range(prompts)],
            "spare_ms": lambda i, o=asked: o.spare(i, prompts),
        }
        found[str(count)] = {name: _milliseconds(way) for name, way in ways.items()}
    return found


def _milliseconds(way: Callable[[int], object], times: int = 3) -> float:
    begun = time.process_time()
    for iteration in range(times):
        way(iteration)
    return round((time.process_time() - begun) / times * 1000, 2)


def events(updates: int) -> dict[str, Any]:
    """A fit of so many updates (four an iteration), evaluated every 25 iterations, and ``gspo report`` on it."""
    with tempfile.TemporaryDirectory() as name:
        train, val = Path(name, "train.jsonl"), Path(name, "val.jsonl")
        write_rows(train, 10_000)
        write_rows(val, 16)
        keeps = '[{"class_path": "LastCheckpoint", "init_args": {"every_n_iterations": 100}}]'
        made = fit(
            Path(name), f"--data.train={train}", f"--data.val={val}", f"--trainer.max_epochs={updates // 4}",
            "--trainer.check_val_every_n_epoch=25", f"--trainer.callbacks={keeps}",
        )  # fmt: skip
        (run,) = Path(name, "runs", "growth").glob("version_*")
        kinds = dict.fromkeys(("simple_value", "histo", "tensor", "image"), 0)
        loader: Any = RawEventFileLoader
        for record in (record for file in run.glob("events.*") for record in loader(str(file)).Load()):
            for value in Event.FromString(record).summary.value:
                kinds[value.WhichOneof("value")] += len(record) + 16  # its length and two checksums
        total = sum(file.stat().st_size for file in run.glob("events.*"))
        beside = {file.name: file.stat().st_size for file in sorted(run.glob("*.jsonl"))}
        return {
            "updates": updates, "fit": made, "event_mb": round(total / 1e6, 2), "report": command("report", str(run)),
            "event_mb_per_1000_updates": round(total / updates / 1e3, 2),
            "event_mb_by_kind": {kind: round(size / 1e6, 2) for kind, size in kinds.items()},
            "other_mb": {file: round(size / 1e6, 2) for file, size in beside.items()},
        }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--updates", type=int, nargs="+", default=[1_000, 10_000], help="multiples of 4")
    options = parser.parse_args(list(argv))
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    measure: dict[str, Callable[[], Any]] = {
        "rows": lambda: rows(options.rows),
        "order": lambda: order(options.rows),
        "events": lambda: [events(updates) for updates in options.updates],
    }
    chosen = options.subjects or list(SUBJECTS)
    print(json.dumps({subject: measure[subject]() for subject in chosen}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
