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
    "code": "programs that are run against tests, on a tiny model; with --card or --model on a real one",
    "agent": "a program that talks to the model and has a calculator, on a real model",
    "logic": "knights and knaves, on a tiny model",
}
REAL = {"math": "math", "code": "programs", "agent": "agent"}
"""Task with a real model -> folder of its templates."""
CARDS: dict[str, dict[str, Any]] = {
    "24GB": {"model": "Qwen/Qwen3-0.6B", "prompts": 16, "response_tokens": 1024, "budget": 8192},
    "80GB": {"model": "Qwen/Qwen3-1.7B", "prompts": 16, "response_tokens": 2048, "budget": 16384},
}
"""Memory of one GPU -> a Qwen3 whose weights can all be trained there, and batch sizes that fit beside it.

Weights, gradients and the two moments of AdamW take 16 bytes a parameter: 9.5 GB and 27.5 GB. The 24 functions
of code bound the prompts of an iteration.
"""
_SMALLEST = next(iter(CARDS))
"""Card of a task with a real model if none is named."""
SMALL_MODEL = 4e8
"""Parameters below which problems are of one step: of two, SmolLM2-135M solved none."""
REASON = r"Reason step by step and put the final answer in \boxed{}."
"""System prompt of mathematics."""
SOLVED = [
    ("Tom has 3 pens and buys 4 more. How many pens does Tom have now?", "3 + 4 = 7", 7),
    ("Sue has 9 balls and gives 5 of them to Max. How many balls does Sue have left?", "9 - 5 = 4", 4),
    ("There are 2 bowls with 6 nuts in each bowl. How many nuts are there in all bowls?", "2 x 6 = 12", 12),
    ("Pat shares 12 figs equally among 3 friends. How many figs does each friend get?", "12 / 3 = 4", 4),
]
"""Worked examples for a small model: problem, calculation, answer; those of configs/smollm2.yaml, with a box."""
_STORIES = [
    "A shop has {a} boxes of {b} pens and sells {c} pens. How many pens are left?",
    "A train of {a} coaches has {b} seats in each, and {c} seats are taken. How many seats are free?",
    "A farm has {a} rows of {b} trees, and a storm fells {c} of them. How many trees stand?",
    "A book of {a} pages has {b} words on each, and {c} words are read. How many words remain?",
]
"""Word problems of two operations, a * b - c."""
_UNCOLLECTED = ".txt"
"""Suffix of Python files in templates, so that no tool takes them for modules of this package."""
_COMMAND = "#   "
"""What a command stands behind, in the first lines of a template."""
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
    parser.add_argument("--task", choices=TASKS, help="kind of project (default: own, or word problems for --model)")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="NAME_OR_PATH", help=f"train this model; with no task or {', '.join(REAL)}")
    model.add_argument("--card", choices=CARDS, help=f"train a model that fits this GPU; with {', '.join(REAL)}")
    options = parser.parse_args(list(argv))
    write_project(options.folder, options.task, options.model, options.card)
    say(f"written: {options.folder} ({', '.join(sorted(p.name for p in options.folder.iterdir()))})")
    first, *others = _commands((options.folder / "train.yaml").read_text(encoding="utf-8"))
    say("\n".join([f"next: {first}", *(f"      {command}" for command in others)]))
    return 0


def write_project(folder: Path, task: str | None = None, model: str | None = None, card: str | None = None) -> None:
    """Write the files of a task.

    Args:
        folder: created, or an existing empty folder.
        task: one of ``TASKS``; None is ``own``, or word problems for a model.
        model: hub id, folder or GGUF file.
        card: one of ``CARDS``, which names the model.

    Raises:
        UserError: see :func:`main`.
        InfrastructureError: the disk is full; files already written are removed.
    """
    if not str(folder).isprintable():
        raise UserError("gspo init", f"{str(folder)!r} has characters that cannot be shown", fix="name another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("gspo init", f"{str(folder)!r} exists and is not an empty folder", fix="name a new folder")
    template, words = _template(task, model, card)
    small = f"small {template}"
    records = small if words.get("small") and small in RECORDS else template
    files = {}
    for file in sorted((TEMPLATES / template).iterdir()):
        if file.is_file():
            files[file.name.removesuffix(_UNCOLLECTED)] = _filled(file, folder, words)
    if records in RECORDS:
        files |= RECORDS[records]()
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


def _commands(config: str) -> list[str]:
    """Return the commands that the first lines of a project's config name, in their order."""
    return [line.removeprefix(_COMMAND) for line in config.splitlines() if line.startswith(f"{_COMMAND}gspo ")]


def _template(task: str | None, model: str | None, card: str | None) -> tuple[str, dict[str, str]]:
    """Return the folder of a project's templates, and their words.

    Raises:
        UserError: the task has only its tiny model, or the model's config cannot be read.
    """
    named = model is not None or card is not None
    if task is None:
        if card is not None:
            raise UserError("gspo init", "--card needs a task", fix=f"add --task, one of {', '.join(REAL)}")
        return ("own", {}) if model is None else ("real", _words(model))
    if named and task not in REAL:
        fix = f"leave --model and --card out, or take --task {', '.join(REAL)}"
        raise UserError("gspo init", f"--task {task} is for its tiny model", fix=fix)
    if task not in REAL or (task == "code" and not named):
        return task, {}
    return REAL[task], _words(model) | _sizes() if model is not None else _words_of_card(card or _SMALLEST)


def _words(model: str) -> dict[str, str]:
    """Return the settings of a model in its template, on this machine: word -> value.

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
        "small": "small" if size < SMALL_MODEL else "",
        "system_prompt": _worked_examples() if size < SMALL_MODEL else REASON,
        "rate": f"{usual_rate(max(size, SMALLEST), adapters=False):.1e}",
        "accelerator": "auto" if gpu else "cpu",
        "precision": "bf16-mixed" if gpu and torch.cuda.is_bf16_supported() else "32-true",
        "checkpointing": "true" if size > 1e9 else "false",
        "temperature": "1.0" if size > 1e9 else "0.7",  # at 1.0 few answers of small models are right
        "device": "",
    }


def _worked_examples() -> str:
    """Return a system prompt with worked examples as earlier turns, as YAML."""
    turns = [("system", r"Answer with one calculation and put the answer in \boxed{}.")]
    for problem, calculation, answer in SOLVED:
        turns += [("user", problem), ("assistant", rf"{calculation}. The answer is \boxed{{{answer}}}.")]
    lines = [f"    - {{role: {role}, content: '{content}'}}" for role, content in turns]
    return "\n".join(["# one worked example of each operation, as earlier turns", *lines])


def _words_of_card(card: str) -> dict[str, str]:
    """Return the settings of a card's model in its template, whatever this machine has: word -> value."""
    sizes = CARDS[card]
    settings = {
        "accelerator": "auto", "precision": "bf16-mixed", "checkpointing": "true", "temperature": "1.0",
        "device": f" --device {card}",
    }  # fmt: skip
    return _words(str(sizes["model"])) | settings | _batch(sizes)


def _sizes() -> dict[str, str]:
    """Return the batch sizes for a model of the user's: those of the smallest card, or small ones without a GPU.

    Whether the model fits is for ``gspo plan`` to say.
    """
    import torch

    small = {"prompts": 4, "minibatches": 2, "response_tokens": 512, "budget": 2048}
    return _batch(CARDS[_SMALLEST] if torch.cuda.is_available() else small)


def _batch(sizes: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of batch sizes; 8 responses per prompt, as in the templates."""
    updates = int(sizes.get("minibatches", 4))
    rollouts = 8 * int(sizes["prompts"])
    return {
        "prompts": str(sizes["prompts"]),
        "rollouts": f"{rollouts}",
        "updates": str(updates),
        "rows": str(rollouts // updates),
        "prompt_tokens": "512",
        "response_tokens": str(sizes["response_tokens"]),
        "budget": str(sizes["budget"]),
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
    """Return problems of two operations; the held-out ones tell another story."""
    draw = random.Random(7)
    problems: dict[str, list[dict[str, str]]] = {"train": [], "held_out": []}
    prompts: set[str] = set()
    for split, stories, size in (("train", _STORIES[:3], 10 * COUNT), ("held_out", _STORIES[3:], 64)):
        while len(problems[split]) < size:
            a = draw.randint(3, 12)
            b = draw.randint(4, 15)
            c = draw.randint(2, 11)
            prompt = stories[len(problems[split]) % len(stories)].format(a=a, b=b, c=c)
            if prompt not in prompts:
                prompts.add(prompt)
                problems[split].append({"prompt": prompt, "answer": str(a * b - c)})
    return {f"{split}.jsonl": _lines(records) for split, records in problems.items()}


def _one_step(instruction: str = "", largest: int = 12) -> dict[str, str]:
    """Return problems of one operation with sums of numbers up to ``largest``; the held-out ones tell other stories."""
    from gspo_lightning.data.prompts import WordProblems

    return {
        "train.jsonl": _lines(
            WordProblems("train", size=10 * COUNT, largest=largest, instruction=instruction).records()
        ),
        "held_out.jsonl": _lines(WordProblems("held_out", size=64, largest=largest, instruction=instruction).records()),
    }


def _agent() -> dict[str, str]:
    """Return word problems of two operations, with numbers so large that a calculator pays."""
    draw = random.Random(7)
    records = []
    for number in range(10 * COUNT + 64):
        a = draw.randint(12, 98)
        b = draw.randint(13, 97)
        c = draw.randint(11, 99)
        records.append({"prompt": _STORIES[number % 4].format(a=a, b=b, c=c), "answer": str(a * b - c)})
    return {"train.jsonl": _lines(records[: 10 * COUNT]), "held_out.jsonl": _lines(records[10 * COUNT :])}


def _code() -> dict[str, str]:
    from gspo_lightning.data.prompts.tasks.code import CodeTask

    return {"train.jsonl": _lines(CodeTask(split="train", size=COUNT).records())}


def _logic() -> dict[str, str]:
    """Return ``10 * COUNT`` puzzles: with only 20, a model memorises their answers and unlearns how to solve others."""
    from gspo_lightning.data.prompts.tasks.logic import LogicTask

    puzzles = LogicTask(family="knights", split="train", size=10 * COUNT, style="compact")
    return {"train.jsonl": _lines(puzzles.records())}


def _calculated() -> dict[str, str]:
    """Return problems of one operation, with numbers so large that a calculator pays."""
    return _one_step(largest=100)


def _real() -> dict[str, str]:
    """Return word problems that ask for a short answer: without it a small model rarely ends one."""
    return _one_step("\nAnswer briefly, with a single number.")


RECORDS: dict[str, Callable[[], dict[str, str]]] = {
    "own": _own, "math": _math, "small math": _one_step, "code": _code, "agent": _agent,
    "small agent": _calculated, "logic": _logic, "real": _real,
}  # fmt: skip
"""Folder of templates, "small" before it for a small model -> function that returns record files: name -> text; the
others lie in the folder."""
