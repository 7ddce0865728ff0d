"""Run this environment's Python as an ordinary user where root calls: ``python -m tools.ordinary_user -m pytest``.

Such a user must be able to read the interpreter. Where it lies in a home that is closed to others, the system's Python
takes its place, in a virtual environment that shows it the packages of this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

USER = 4242
SYSTEM_PYTHON = "/usr/bin/python3"
SHOW_VERSION = "import sysconfig, torch; print(sysconfig.get_config_var('SOABI'))"


def main(command: Sequence[str]) -> int:
    """The exit code of ``python COMMAND``, run as user 4242; as the caller itself if that is not root."""
    if os.geteuid() != 0:
        return subprocess.call([sys.executable, *command])
    with tempfile.TemporaryDirectory(prefix="ordinary-user-") as folder:
        home = Path(folder, "home")
        home.mkdir()
        for path in (Path(folder), home):
            os.chown(path, USER, USER)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
            **{"HOME": str(home), "TMPDIR": str(home), "USER": "ordinary", "LOGNAME": "ordinary"},
            **{"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis")},
        }
        python = _interpreter(Path(folder, "python"), environment)
        return subprocess.call([python, *command], env=environment, user=USER, group=USER, extra_groups=[])


def _interpreter(folder: Path, environment: dict[str, str]) -> str:
    """One that the user can run: this environment's, or the system's with the packages of this environment."""
    if _runs(sys.executable, environment):
        return sys.executable
    made = subprocess.run(
        [SYSTEM_PYTHON, "-m", "venv", "--without-pip", folder], capture_output=True, text=True, check=False
    )
    packages = next(folder.glob("lib/python*/site-packages"), None)
    if made.returncode == 0 and packages is not None:
        own = sysconfig.get_path("purelib")
        (packages / "environment.pth").write_text(f"import site; site.addsitedir({own!r})\n")
        if _runs(str(folder / "bin" / "python"), environment):
            return str(folder / "bin" / "python")
    sys.exit(
        f"error: no Python for an ordinary user: {os.path.realpath(sys.executable)} is closed to others, and "
        f"{SYSTEM_PYTHON} cannot load the packages of this environment. Make the environment with a Python that "
        "everybody can read."
    )


def _runs(python: str, environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", SHOW_VERSION],
            env=environment,
            user=USER,
            group=USER,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return False
    return done.stdout.strip() == sysconfig.get_config_var("SOABI")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
