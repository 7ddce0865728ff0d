"""Mutated command lines, configs, prompt files and plug-ins, from one number each."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import yaml

from tests.runs import runs

VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 1e309, -0.5, 10**30, "", " ", "many", "GSPO", "nowhere.jsonl", "é\u2028\x00", [],
    [1, "a"], {},
    {"class_path": "GSPO"}, {"class_path": "NoSuch", "init_args": {"x": 1}}, {"a": {"b": {"c": 1}}}, "${oc.env:HOME}",
    "!!python/object/apply:os.getpid []", "[", "{", "null", "1e-4", "x" * 5000,
]  # fmt: skip
WORDS = [
    "--data.group_size", "--model.objective", "--trainer.max_epochs", "--ckpt_path", "--plugins", "--config", "--help",
    "--data.train", "--model.objective.clip_low", "--seed_everything", "--print_config", "--traceback", "-x", "--", "=",
    "--data.rewards", "--model.name_or_path", "--data", "--trainer.callbacks+", "--trainer.logger", "fit", "validate",
]  # fmt: skip
LINES = [
    "", "{", "[]", "null", '{"prompt": null}', '{"prompt": 3}', '{"prompt": ["1:"]}', '{"prompt": ""}', '{"answer": 1}',
    '{"prompt": "1:"}', '{"prompt": {"role": "user"}}', "\ud7ff", '{"prompt": "\\u0000"}',
]  # fmt: skip
PLUGINS = [
    "",
    "1/0",
    "import os; os.nothing",
    "class A(",
    "raise SystemExit(3)",
    "raise KeyboardInterrupt",
    "\x00",
    "from gspo_lightning.rewards import Reward\nclass R(Reward): pass",
    "from gspo_lightning.objectives import Objective\nclass O(Objective): x: int = 'a'",
    "from gspo_lightning.rewards import Reward\nclass ExactMatch(Reward):\n    def score(self, completion): return 0.0",
]


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        paths += _places(value, (*path, key))
    return paths


def mutate(tree: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One to three changes: another value, a key less, a key more, a key misspelt."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        if not (places := _places(tree)):
            return tree
        *path, last = draw.choice(places)
        node: Any = tree
        for key in path:
            node = node[key]
        change = draw.randrange(4)
        if change == 0 or not isinstance(node, dict):
            node[last] = draw.choice(VALUES)
        elif change == 1:
            del node[last]
        elif change == 2:
            node[f"{last}{draw.choice('xs_.-')}"] = node.pop(last)
        else:
            node[draw.choice(["extra", "beta", "lr", "class_path", "init_args", "num_generations"])] = draw.choice(
                VALUES
            )
    return tree


def command(number: int, folder: Path) -> list[str]:
    """The command line of one mutation; the files it names are in ``folder``."""
    draw = random.Random(number)
    folder.mkdir(parents=True)
    tree = yaml.safe_load(runs.QUICKSTART.read_text())
    tree["model"]["cold_start"] = None
    if draw.random() < 0.6:
        tree = mutate(tree, draw)
    text = yaml.safe_dump(tree, allow_unicode=True)
    if draw.random() < 0.1:  # bytes, not settings
        place = draw.randrange(len(text))
        text = text[:place] + draw.choice(["\t", "{", ":", "\x00", "- ", "&a *a", "é"]) + text[place:]
    config = folder / "config.yaml"
    config.write_text(text, encoding="utf-8")
    small = [*runs.SMALL, "--trainer.max_epochs=1", "--data.evaluation.limit=4", "--trainer.accelerator=cpu"]
    argv = ["fit", f"--config={config}", *small, f"--trainer.default_root_dir={folder / 'root'}"]
    kind = draw.randrange(4)
    if kind == 0:  # the command line
        for _ in range(draw.randint(1, 3)):
            word = draw.choice(WORDS)
            argv.insert(draw.randrange(len(argv)), draw.choice([word, f"{word}={draw.choice(VALUES)}"]))
    elif kind == 1:  # the prompts
        lines = [json.dumps({"prompt": f"{i}:", "answer": "1"}) for i in range(8)]
        for _ in range(draw.randint(1, 3)):
            lines[draw.randrange(8)] = draw.choice(LINES)
        (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        argv.append(f"--data.train={folder / 'prompts.jsonl'}")
    elif kind == 2:  # a plug-in
        (folder / f"fuzzed_{number}.py").write_text(draw.choice(PLUGINS), encoding="utf-8")
        argv.append(f"--plugins={folder / f'fuzzed_{number}.py'}")
    return [a for a in argv if "\x00" not in a]  # no system passes such an argument on
