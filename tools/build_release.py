"""The files of a release: ``python -m tools.build_release OUTPUT`` builds sdist and wheel of a commit, reproducibly.

Two builds of a commit give the same bytes, whatever the folder, the time, the umask and the state of the working tree:
the tree is taken from git, times are the commit's, owners and modes are fixed, and the wheel is built from the sdist.
The build tools are those of the environment. Writes ``SHA256SUMS`` beside the two files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["build", "main", "normalised"]

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"


def normalised(sdist: bytes, seconds: int) -> bytes:
    """The same source archive with fixed order, times, owners and modes.

    Args:
        sdist: a ``.tar.gz`` file.
        seconds: time of every file, in Unix seconds.
    """
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist), mode="r:gz") as before,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda m: m.name):
            content = before.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            after.addfile(member, content)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=seconds) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def build(output: Path, revision: str = "HEAD", repository: Path = ROOT) -> list[Path]:
    """Build a commit; return sdist and wheel.

    Args:
        output: folder to write; made if needed.
        revision: commit, branch or tag.
        repository: a clone.

    Raises:
        SystemExit: git or the build fails, with its output.
    """
    output.mkdir(parents=True, exist_ok=True)
    seconds = int(_run(["git", "-C", str(repository), "log", "-1", "--format=%ct", revision]).decode())
    with tempfile.TemporaryDirectory(prefix="gspo-release-") as name:
        tree, made = Path(name, "tree"), Path(name, "made")
        before = os.umask(0o022)  # git gives files the modes that it leaves
        try:
            archive = _run(["git", "-C", str(repository), "archive", "--format=tar", revision])
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(tree, filter="tar")
            environment = os.environ | {"SOURCE_DATE_EPOCH": str(seconds), "PYTHONHASHSEED": "0"}
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made)]
            _run([*command, "--sdist", str(tree)], environment)
            (sdist,) = made.glob("*.tar.gz")
            sdist.write_bytes(normalised(sdist.read_bytes(), seconds))
            with tarfile.open(sdist) as files:
                files.extractall(Path(name, "source"), filter="tar")
            (source,) = Path(name, "source").iterdir()
            _run([*command, "--wheel", str(source)], environment)
        finally:
            os.umask(before)
        found = [output / file.name for file in sorted(made.iterdir())]
        for file in found:
            file.write_bytes((made / file.name).read_bytes())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in found]
    (output / SUMS).write_text("".join(lines), encoding="ascii")
    return found


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> bytes:
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{(done.stdout + done.stderr).decode()}\nerror: {' '.join(command[:4])} ... failed")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, and print the hashes."""
    parser = argparse.ArgumentParser(description="Build sdist and wheel of a commit, reproducibly.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--revision", default="HEAD")
    options = parser.parse_args(arguments)
    build(options.output, options.revision)
    print((options.output / SUMS).read_text(encoding="ascii"), end="")


if __name__ == "__main__":
    main()
