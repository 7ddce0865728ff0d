"""``gspo init``: write a config, a reward with its test, example records and a README into a new folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.faults import DISK

TEMPLATES = Path(__file__).parent / "templates"
CONFIGS = Path(__file__).parents[1] / "configs"
SCHEMA = "schema.json"
"""The schema of the YAML, for editors: ``train.yaml`` points to it."""
TASKS = {
    "own": "your own reward and data, on a tiny model: offline, under two minutes on a CPU",
    "math": "mathematics with a verifier, on a real model",
    "code": "programs that are run against tests, on a tiny model",
    "logic": "knights and knaves, on a tiny model",
}
_UNCOLLECTED = ".txt"
"""Suffix of Python files in templates, so that no tool takes them for modules of this package."""
COUNT = 20
"""Number of records in a file of examples."""


def main(argv: Sequence[str]) -> int:
    """Write a project; existing files are not touched.

    Raises:
        UserError: the folder exists and is not empty, or cannot be written.
    """
    parser = argparse.ArgumentParser(
        "gspo init",
        description="Write a project: train.yaml, a reward with its test, example records and a README.",
        epilog="\n".join(["tasks:", *(f"  {name:<7}{text}" for name, text in TASKS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="a new or an empty folder")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--task", choices=TASKS, default="own", help="kind of project (default: own)")
    kind.add_argument("--model", metavar="NAME_OR_PATH", help="a project for this model: word problems in English")
    options = parser.parse_args(list(argv))
    write_project(options.folder, "real" if options.model else options.task, options.model)
    config = options.folder / "train.yaml"
    say(f"written: {options.folder} ({', '.join(sorted(p.name for p in options.folder.iterdir()))})")
    say(f"next: gspo fit --config {shlex.quote(str(config))}")
    return 0


def write_project(folder: Path, task: str, model: str | None = None) -> None:
    """Write the files of a task.

    Args:
        folder: created, or an existing empty folder.
        task: one of ``TASKS``, or ``real`` with a model.
        model: hub id, folder or GGUF file.

    Raises:
        UserError: see :func:`main`.
        InfrastructureError: the disk is full; files already written are removed.
    """
    if not str(folder).isprintable():
        raise UserError("gspo init", f"{str(folder)!r} has characters that cannot be shown", fix="name another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("gspo init", f"{str(folder)!r} exists and is not an empty folder", fix="name a new folder")
    words = {} if model is None else _words(model)
    files = {}
    for file in sorted((TEMPLATES / task).iterdir()):
        if file.is_file():
            files[file.name.removesuffix(_UNCOLLECTED)] = _filled(file, folder, words)
    files |= RECORDS[task]()
    files[SCHEMA] = (CONFIGS / "schema" / "fit.json").read_text(encoding="utf-8")
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with open(folder / name, "x", encoding="utf-8") as target:  # "x": never overwrite one created meanwhile
                written.append(folder / name)
                target.write(text)
    except BaseException as error:
        with contextlib.suppress(OSError):  # half a project would block the next try
            for path in written:
                path.unlink(missing_ok=True)
            for path in new_folders:
                path.rmdir()
        if not isinstance(error, OSError):
            raise
        problem = f"{str(folder)!r} cannot be written: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in DISK:
            raise InfrastructureError(f"{problem}; nothing of it is left.\n  fix: make room, and repeat it") from error
        raise UserError("gspo init", problem, fix="name another folder") from error


def _words(model: str) -> dict[str, str]:
    """Return the settings of a model in its template: word -> value.

    Raises:
        UserError: its config cannot be read.
    """
    import torch

    from gspo_lightning.commands.plan.models import counts_of
    from gspo_lightning.loop.update.learning_rates import SMALLEST, usual_rate
    from gspo_lightning.policy.load.model_settings import ModelSettings

    path = Path(model).expanduser()
    name = str(path.resolve()) if path.exists() else model
    size = counts_of(ModelSettings(name)).total
    gpu = torch.cuda.is_available()
    return {
        "model": json.dumps(name),
        "size": f"{size / 1e9:.2g}",
        "rate": f"{usual_rate(max(size, SMALLEST), adapters=False):.1e}",
        "accelerator": "auto" if gpu else "cpu",
        "precision": "bf16-mixed" if gpu and torch.cuda.is_bf16_supported() else "32-true",
        "checkpointing": "true" if size > 1e9 else "false",
        "temperature": "1.0" if size > 1e9 else "0.7",  # at 1.0 few answers of small models are right
    }


def _filled(file: Path, folder: Path, words: Mapping[str, str]) -> str:
    """Return the text of a template with the new folder, shell-quoted, in its commands and comments."""
    replacements = {"FOLDER/train.yaml": shlex.quote(str(folder / "train.yaml")), "FOLDER": shlex.quote(str(folder))}
    text = file.read_text(encoding="utf-8")
    for placeholder, path in replacements.items():
        if file.name.endswith(f".py{_UNCOLLECTED}"):  # inside a Python string
            path = path.replace("\\", "\\\\").replace('"', '\\"')
        text = text.replace(placeholder, path)
    for word, value in words.items():
        text = text.replace(f"<{word}>", value)
    return text


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(dict(record)) + "\n" for record in records)


def _own() -> dict[str, str]:
    """Return digits to sort; two in five demonstrations are correct, the others repeat the prompt."""
    draw = random.Random(7)
    digits = [f"{n:04d}" for n in draw.sample(range(10_000), 2 * COUNT + 1000)]
    examples = [{"prompt": f"{d}:", "answer": "".join(sorted(d))} for d in digits[: 2 * COUNT]]
    demonstrations = []
    for d in digits[2 * COUNT :]:
        completion = "".join(sorted(d)) if draw.random() < 0.4 else d
        demonstrations.append({"prompt": f"{d}:", "completion": completion})
    return {
        "train.jsonl": _lines(examples[:COUNT]),
        "held_out.jsonl": _lines(examples[COUNT:]),
        "demos.jsonl": _lines(demonstrations),
    }


def _math() -> dict[str, str]:
    """Return two-step word problems."""
    draw = random.Random(7)
    records = []
    for _ in range(COUNT):
        boxes = draw.randint(3, 12)
        pens = draw.randint(4, 15)
        sold = draw.randint(2, 11)
        question = f"A shop has {boxes} boxes of {pens} pens and sells {sold} pens. How many pens are left?"
        records.append({"prompt": question, "answer": str(boxes * pens - sold)})
    return {"train.jsonl": _lines(records)}


def _code() -> dict[str, str]:
    from gspo_lightning.data.prompts.tasks.code import CodeTask

    return {"train.jsonl": _lines(CodeTask(split="train", size=COUNT).records())}


def _logic() -> dict[str, str]:
    """Return ``10 * COUNT`` puzzles: with only 20, a model memorises their answers and unlearns how to solve others."""
    from gspo_lightning.data.prompts.tasks.logic import LogicTask

    puzzles = LogicTask(family="knights", split="train", size=10 * COUNT, style="compact")
    return {"train.jsonl": _lines(puzzles.records())}


def _real() -> dict[str, str]:
    """Return word problems; the held-out ones tell other stories."""
    from gspo_lightning.data.prompts import WordProblems

    instruction = "\nAnswer briefly, with a single number."  # without it a small model rarely ends an answer
    return {
        "train.jsonl": _lines(WordProblems("train", size=10 * COUNT, instruction=instruction).records()),
        "held_out.jsonl": _lines(WordProblems("held_out", size=64, instruction=instruction).records()),
    }


RECORDS: dict[str, Callable[[], dict[str, str]]] = {
    "own": _own, "math": _math, "code": _code, "logic": _logic, "real": _real,
}  # fmt: skip
"""Task -> function that returns its record files: name -> text."""
