"""Command for a module of this package in a process of its own, also of an interpreter with other packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])
_OTHER = """\
import runpy, sys
sys.path.append({root!r})
import gspo_lightning
sys.path.remove({root!r})  # its other packages are not those of this interpreter
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def module_command(module: str, python: str | None = None) -> tuple[list[str], Mapping[str, str]]:
    """Return a command and its environment variables: one thread, no device.

    Args:
        module: of this package.
        python: path of an interpreter, which needs none of this package's dependencies if the module needs none; None:
            the one of this process.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    variables = {**os.environ, **one_thread, "CUDA_VISIBLE_DEVICES": ""}
    if python is None:
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        return [sys.executable, "-P", "-m", module], variables | {"PYTHONPATH": path}
    path = os.pathsep.join(filter(None, (os.path.dirname(python), os.environ.get("PATH"))))
    return [python, "-P", "-c", _OTHER.format(root=_ROOT, module=module)], variables | {"PATH": path}
