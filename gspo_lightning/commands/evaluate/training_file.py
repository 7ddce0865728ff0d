"""Contamination check: report whether a model's training file was decontaminated against the suites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gspo_lightning.corpus.certificate import about, read_certificate
from gspo_lightning.corpus.yaml_text import load_yaml
from gspo_lightning.suites.problems import data_file
from gspo_lightning.suites.suite import load_suite

__all__ = ["lines"]


def lines(configs: Sequence[str], checkpoint: str | None, suites: Sequence[str], folder: Path | None) -> Iterator[str]:
    """Yield messages about the decontamination certificate of ``data.train``; none if the training file is unknown.

    Args:
        configs: config files of ``gspo fit``.
        checkpoint: checkpoint of a run, whose folder holds its config; only used without ``configs``.
        suites: ``NAME`` or ``NAME:WINDOW``.
        folder: folder with the suites' files.

    Raises:
        UserError: the certificate cannot be read.
    """
    files = [Path(name) for name in configs]
    if not files and checkpoint is not None:
        files = [Path(checkpoint).parent.parent / "config.yaml"]
    train = _train(files)
    if train is None:
        return
    said = about(train)
    if said is None:
        yield f"trained on {train.name}: not checked for leaks from these benchmarks"
        return
    yield f"trained on {said[0]}" if said[1] else f"warning: trained on {said[0]}"
    certificate = read_certificate(train)
    for name in suites if folder is not None and certificate is not None and said[1] else ():
        assert folder is not None
        assert certificate is not None
        suite = load_suite(name.partition(":")[0])
        if not certificate.covers(data_file(suite, folder)):
            yield f"warning: {suite.name} is not among them: gspo data decontaminate --against its file"


def _train(files: Sequence[Path]) -> Path | None:
    """Return ``data.train`` of the last config that sets it; None if it is not a file."""
    found: Any = None
    for file in files:
        try:
            config = load_yaml(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue  # reported where the config is needed
        data = config.get("data") if isinstance(config, dict) else None
        found = data.get("train", found) if isinstance(data, dict) else found
    if isinstance(found, dict):
        found = (found.get("init_args") or {}).get("path")
    return Path(found) if isinstance(found, str) and Path(found).is_file() else None
