"""Results of an evaluation as ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.resume.files import write_text
from gspo_lightning.statistics.intervals import Estimate
from gspo_lightning.suites.metrics import Found

__all__ = ["RESULTS", "as_json", "read_results", "torn", "write_results"]

RESULTS = "results.json"


def as_json(found: Mapping[str, Found]) -> dict[str, dict[str, Any]]:
    """Return ``{metric: {value, low, high, n}}``, and ``these_problems`` if that interval exists.

    >>> as_json({"avg@2": Found(Estimate(0.5, 0.1, 0.9, 4))})
    {'avg@2': {'value': 0.5, 'low': 0.1, 'high': 0.9, 'n': 4}}
    """
    return {name: _one(one) for name, one in found.items()}


def _one(found: Found) -> dict[str, Any]:
    written: dict[str, Any] = _ends(found.new_problems)
    if found.these_problems is not None and found.these_problems.low is not None:
        ends = _ends(found.these_problems)
        written["these_problems"] = {"low": ends["low"], "high": ends["high"]}
    return written


def _ends(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write the results atomically, also against a power failure."""
    target = folder / RESULTS
    write_text(target, json.dumps(results, indent=2) + "\n")
    return target


def torn(folder: Path) -> bool:
    """True if the file exists but is incomplete: empty, or cut off."""
    try:
        json.loads((folder / RESULTS).read_bytes())
    except ValueError:
        return True
    except OSError:
        pass
    return False


def read_results(folder: Path) -> dict[str, Any]:
    """Read a file that :func:`write_results` wrote.

    Raises:
        UserError: it is missing, or is another file.
    """
    try:
        found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            str(folder), f"has no {RESULTS}", fix="give the --output of a finished gspo evaluate"
        ) from error
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{folder / RESULTS}", "cannot be read") from error
    if not isinstance(found, dict) or "run" not in found:
        raise UserError(f"{folder / RESULTS}", "holds no results of gspo evaluate")
    return found
