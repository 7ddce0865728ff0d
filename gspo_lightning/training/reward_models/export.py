"""Export of a reward model: a folder in transformers format, with tokenizer and model card.

The card publishes no local paths: only the name of a file is written, or a hub id.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_lightning.core.escape import cell, code
from gspo_lightning.core.temp_files import share
from gspo_lightning.policy.load.card import header, is_hub_id, origin, setting
from gspo_lightning.policy.load.classifier import set_pad
from gspo_lightning.policy.older_readers import add_older_names
from gspo_lightning.resume.exports import exported_folder
from gspo_lightning.training.reward_models.pair_batches import Text

READS = "gspo_reads"
"""Key of a model's config: the text format it was trained on, ``joined`` or ``chat``."""
CARD = "README.md"
SETTINGS = {
    "learning rate": ("model", "optimizer", "init_args", "lr"),
    "coefficient of the centred rewards": ("model", "center_rewards_coefficient"),
    "adapters": ("model", "lora"),
    "pairs per update": ("data", "batch_size"),
    "epochs": ("trainer", "max_epochs"),
    "precision": ("trainer", "precision"),
    "seed": ("seed_everything",),
}
"""Row of the card -> path in the config."""


def export(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reads: Text,
    content: Mapping[str, Any],
    sources: Iterable[Path] = (),
) -> None:
    """Write the folder, whole or not at all; an existing export is replaced.

    ``AutoModelForSequenceClassification.from_pretrained(folder)`` loads it, and ``SequenceClassificationReward`` takes
    the folder as it is.

    Args:
        folder: to write.
        model: with adapters merged.
        tokenizer: of the model.
        reads: text format it was trained on.
        content: of the card, see :func:`gspo_lightning.training.reward_models.export.card`.
        sources: files and folders that are still needed, so the folder must not hold them.

    Raises:
        UserError: the folder exists and is not an export.
    """
    setattr(model.config, READS, reads)
    set_pad(model, tokenizer.pad_token_id)
    with exported_folder(folder, sources) as unfinished:
        model.save_pretrained(unfinished)
        share(unfinished, unfinished / "config.json")
        tokenizer.save_pretrained(unfinished)
        add_older_names(unfinished)
        picture = content.get("picture")
        if picture is not None and Path(picture).is_file():
            shutil.copyfile(picture, unfinished / Path(picture).name)
        (unfinished / CARD).write_text(card(content), encoding="utf-8")


def card(content: Mapping[str, Any]) -> str:
    """Return the card, with the header that the hub reads.

    Args:
        content: ``config``, ``updates``, ``results`` (of ``results.json``, or None), ``data`` (fingerprints),
            ``versions``, ``reads`` and ``picture`` (or None).
    """
    parts = (_header(content), _introduction(content), *_training(content), *_data(content), *_results(content))
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(source: Any) -> str:
    """Return a hub id unchanged, the last part of a path, or the class of a prompt set."""
    if isinstance(source, Mapping):
        return str(source.get("class_path")).rpartition(".")[2]
    return str(source) if is_hub_id(str(source).split(":")[0]) else Path(str(source)).name


def _header(content: Mapping[str, Any]) -> str:
    config = content["config"]
    sources = [config["data"].get(name) for name in ("train", "val")]
    base = str(config["model"]["name_or_path"])
    return header(base, sources, "text-classification", ["reward-model", "gspo_lightning"])


def _introduction(content: Mapping[str, Any]) -> str:
    base = str(content["config"]["model"]["name_or_path"])
    name = cell(Path(base).name)
    if content["reads"] == "chat":
        option = ', "text": "chat"'
        form = "as the chat template writes them"
    else:
        option = ""
        form = "joined to one text"
    return (
        f"# A reward model from {name}\n\n{origin(base)}, with one output, trained on preference pairs by "
        f"the Bradley-Terry loss with gspo_lightning. It reads a prompt and an answer {form}, and returns a reward "
        "whose differences are log-odds: an answer is preferred to another with probability sigmoid(difference).\n\n"
        f'```bash\ngspo score --reward \'SequenceClassificationReward:{{"name_or_path": "FOLDER"{option}}}\' '
        "--input answers.jsonl --output scores.jsonl\n```"
    )


def _training(content: Mapping[str, Any]) -> Iterator[str]:
    rows = ["| | |\n|---|---|", f"| updates | {content['updates']:,} |"]
    for label, path in SETTINGS.items():
        value = setting(content["config"], path)
        if value is not None:
            rows.append(f"| {label} | {cell(value)} |")
    yield "## Training"
    yield "\n".join(rows)


def _data(content: Mapping[str, Any]) -> Iterator[str]:
    if not content["data"]:
        return
    dropped = (content["results"] or {}).get("dropped", {})
    rows = ["| | source | pairs | too long | identical answers | SHA-256 |\n|---|---|---|---|---|---|"]
    for name, fingerprint in content["data"].items():
        source = _shown(content["config"]["data"][name])
        left_out = [f"{dropped[name][why]:,}" if name in dropped else "-" for why in ("too_long", "identical")]
        cells = (name, code(source), f"{fingerprint['prompts']:,}", *left_out, code(fingerprint["sha256"][:16]))
        rows.append(f"| {' | '.join(cells)} |")
    yield "## Data"
    yield "\n".join(rows)


def _results(content: Mapping[str, Any]) -> Iterator[str]:
    if content["results"] is not None:
        yield from _held_out(content["results"]["held_out"])
    if content.get("picture") is not None:
        yield f"![Loss, accuracy, calibration and margins]({quote(Path(content['picture']).name)})"
    if content["versions"]:
        yield "## Versions"
        yield ", ".join(f"{cell(name)} {cell(version)}" for name, version in content["versions"].items()) + "."


def _held_out(results: Mapping[str, Any]) -> Iterator[str]:
    accuracy = results["accuracy"]
    interval = "-" if accuracy["low"] is None else f"{accuracy['low']:.3f} to {accuracy['high']:.3f}"
    yield f"## {results['pairs']:,} held-out pairs of {results['prompts']:,} prompts"
    yield (
        "| metric | value | 95% interval for new prompts |\n|---|---|---|\n"
        f"| accuracy | {accuracy['value']:.3f} | {interval} |\n"
        f"| expected calibration error | {results['ece']:.3f} | |\n"
        f"| loss, nats per pair | {results['loss']:.3f} | |\n"
        f"| mean reward, standard deviation | {results['reward']:.2f}, {results['spread']:.2f} | |"
    )
