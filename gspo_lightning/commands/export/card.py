"""Model card of an exported checkpoint: its base model, training settings, data and evaluation results.

Everything comes from the checkpoint itself; the run's figure is copied if the run folder has one. No path of the
training machine is written: a file appears by its name, a hub model or data set by its id.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.escape import cell, code, fenced
from gspo_lightning.policy.load.card import header, is_hub_id, origin, setting
from gspo_lightning.report.words import plain
from gspo_lightning.training.suites.metrics import read_results

CARD = "README.md"
PICTURE = "report.png"
BASE = "base"
"""Folder of the base model beside adapters, where it is not on the hub."""
SETTINGS = {
    "learning rate": ("model", "optimizer", "init_args", "lr"),
    "group size": ("data", "group_size"),
    "prompts per rollout": ("data", "prompts_per_rollout"),
    "mini-batches per rollout": ("data", "minibatches_per_rollout"),
    "passes over a rollout": ("data", "epochs_per_rollout"),
    "response tokens, at most": ("data", "max_response_tokens"),
    "temperature": ("data", "temperature"),
    "precision": ("trainer", "precision"),
    "gradient clipping": ("trainer", "gradient_clip_val"),
    "seed": ("seed_everything",),
}
"""Row of the card -> path in the config."""


def read_evaluations(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Read ``results.json`` of each folder.

    Raises:
        UserError: a folder has none.
    """
    return [read_results(folder) for folder in folders]


def write_card(
    folder: Path,
    content: Mapping[str, Any],
    checkpoint: Path,
    evaluations: Sequence[Mapping[str, Any]],
    *,
    adapter: bool = False,
    gguf: str | None = None,
) -> None:
    """Write ``README.md`` and copy the figure of the run next to it.

    Args:
        folder: folder of the exported model.
        content: content of the checkpoint.
        checkpoint: its path, ``RUN/checkpoints/NAME.ckpt``.
        evaluations: results from :func:`read_evaluations`.
        adapter: True if the folder holds adapters alone.
        gguf: type of the matrices if the folder holds a GGUF file.
    """
    picture = checkpoint.resolve().parent.parent / PICTURE
    if picture.is_file():
        shutil.copyfile(picture, folder / PICTURE)
    text = card(
        content, evaluations, beside=(folder / BASE).is_dir(), picture=picture.is_file(), adapter=adapter, gguf=gguf
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def card(
    content: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]] = (),
    *,
    beside: bool = False,
    picture: bool = False,
    adapter: bool = False,
    gguf: str | None = None,
) -> str:
    """Return the text of the card, with the YAML header that the hub reads.

    Args:
        content: content of a ``gspo fit`` checkpoint.
        evaluations: results of ``gspo evaluate``.
        beside: True if the base model of adapters is in the same folder.
        picture: True if ``report.png`` is in the same folder.
        adapter: True if the folder holds adapters alone.
        gguf: type of the matrices if the folder holds a GGUF file.
    """
    run: Mapping[str, Any] = content.get("gspo_run") or {}  # a checkpoint of GSPOTrainer has no config
    config = run.get("config", {})
    parts: list[Iterable[str]] = [
        [_header(content, config, adapter, gguf)],
        [_introduction(content, adapter, gguf)],
        [_LOADED_BESIDE] if beside else (),
        _training(content, config),
        _data(run) if run.get("data") else (),
        _held_out(content, picture),
        *(_suites(results) for results in evaluations),
        _versions(run) if run.get("versions") else (),
    ]
    texts = ["\n".join(part) for part in parts]
    return "\n\n".join(text for text in texts if text) + "\n"


def _base(content: Mapping[str, Any]) -> str:
    return str(content["gspo_lightning"]["model"]["name_or_path"])


def _header(content: Mapping[str, Any], config: Mapping[str, Any], adapter: bool, gguf: str | None) -> str:
    objective = str(content["gspo_lightning"]["objective"]).partition("(")[0]
    sources = [setting(config, ("data", name)) for name in ("train", "val")]
    tags = ["reinforcement-learning", "gspo_lightning", objective.lower()]
    if adapter:
        return header(_base(content), sources, "text-generation", [*tags, "lora"], library="peft")
    if gguf:
        return header(_base(content), sources, "text-generation", [*tags, "llama.cpp"], library="gguf")
    return header(_base(content), sources, "text-generation", tags)


def _introduction(content: Mapping[str, Any], adapter: bool, gguf: str | None) -> str:
    base = _base(content)
    name = cell(Path(base).name)
    updates = int(content["global_step"])
    loaders = content.get("PromptDataModule", {}).get("ranks", [{}])  # "epoch" is one more after the last iteration
    iterations = int(loaders[0].get("iteration", content["epoch"])) + 1
    if adapter:
        weights = (
            "The weights are the adapters of the policy alone: `PeftModel.from_pretrained` adds them to that model."
        )
    elif content["gspo_lightning"]["model"].get("lora"):
        weights = "The weights are those of the policy, its adapters merged."
    else:
        weights = "The weights are those of the policy."
    if gguf:
        weights += f" They are in GGUF, the format of llama.cpp, with matrices in {gguf}."
    return (
        f"# {name}, fine-tuned by reinforcement learning\n\n{origin(base)}, after "
        f"{updates:,} update{'s' * (updates != 1)} in {iterations:,} iteration{'s' * (iterations != 1)} with "
        f"gspo_lightning. {weights}"
    )


_LOADED_BESIDE = f"""The model that they were trained on is in `{BASE}`:

```python
base = AutoModelForCausalLM.from_pretrained("FOLDER/{BASE}")
model = PeftModel.from_pretrained(base, "FOLDER")
```"""


def _class(value: Any) -> str:
    name = value.get("class_path") if isinstance(value, Mapping) else value
    return str(name).rpartition(".")[2]


def _training(content: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training\n"
    yield "| | |\n|---|---|"
    yield f"| objective | {code(content['gspo_lightning']['objective'])} |"
    optimizer = setting(config, ("model", "optimizer"))
    if optimizer:
        yield f"| optimizer | {code(_class(optimizer))} |"
    for label, path in SETTINGS.items():
        value = setting(config, path)
        if value is not None:
            yield f"| {label} | {cell(value)} |"
    weights = setting(config, ("data", "reward_weights")) or {}
    rewards = []
    for name, reward in (setting(config, ("data", "rewards")) or {}).items():
        rewards.append(f"{cell(name)} ({code(_class(reward))}, weight {weights.get(name, 1.0):g})")
    if rewards:
        yield f"| rewards | {', '.join(rewards)} |"
    lora = content["gspo_lightning"]["model"].get("lora")
    if lora:
        yield f"| adapters | {code(_adapters(lora))} |"
    prompt = setting(config, ("data", "system_prompt"))
    if prompt:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, indent=1)
        yield f"\nSystem prompt, in training and to be used:\n\n{fenced(text, 'text')}"


def _adapters(lora: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of adapters; where they started from brings its own, and is a name."""
    start = lora.get("start_from")
    if start is None:
        return {name: value for name, value in lora.items() if name != "start_from"}
    return {"start_from": start if is_hub_id(start) else Path(start).name, "base": lora["base"]}


def _data(run: Mapping[str, Any]) -> Iterator[str]:
    yield "## Data\n"
    yield "| | source | prompts | SHA-256 of prompts and columns |\n|---|---|---|---|"
    for name, fingerprint in run["data"].items():
        if "prompts" not in fingerprint:  # adapters to start from
            continue
        source = _source(setting(run["config"], ("data", name)))
        yield f"| {name} | {code(source)} | {fingerprint['prompts']:,} | {code(fingerprint['sha256'][:16])} |"


def _source(source: Any) -> str:
    """Return a hub id unchanged, the last part of a path, or the class of a prompt set: no path of this machine."""
    if not isinstance(source, str):
        return _class(source)
    return source if is_hub_id(source.split(":")[0]) else Path(source).name


def _held_out(content: Mapping[str, Any], picture: bool) -> Iterator[str]:
    evaluations = content.get("gspo_evaluations") or []
    if evaluations:
        names = [name for name in ("val/accuracy", "val/reward", "val/response_length") if name in evaluations[0][1]]
        yield "## Held-out prompts during training\n"
        yield f"| update | {' | '.join(name.removeprefix('val/').replace('_', ' ') for name in names)} |"
        yield "|---|" + "---|" * len(names)
        for step, values in evaluations:
            yield f"| {step:,} | {' | '.join(plain(values.get(name)) for name in names)} |"
    if picture:
        yield f"\n![curves of the run]({PICTURE})"


def _suites(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Benchmarks (`gspo evaluate`)\n"
    yield "| suite | metric | value | 95% interval for new problems | problems |\n|---|---|---|---|---|"
    for suite, metrics in results.items():
        if suite == "run":
            continue
        for name, estimate in metrics.items():
            interval = "-"
            if estimate.get("low") is not None:
                interval = f"{plain(estimate['low'])} to {plain(estimate['high'])}"
            value = plain(estimate["value"])
            yield f"| {cell(suite)} | {cell(name)} | {value} | {interval} | {estimate['n']} |"


def _versions(run: Mapping[str, Any]) -> Iterator[str]:
    yield "## Versions\n"
    yield ", ".join(f"{cell(name)} {cell(version)}" for name, version in run["versions"].items()) + "."
