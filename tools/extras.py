"""Which extras can be installed here: ``python tools/extras.py dev,logic`` prints them, and a note on what is left out.

reasoning-gym, of the extra ``logic``, needs pycosat, which has no wheels: pip compiles it.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

COMPILED = "logic"
NOTE = """note: the extra logic (reasoning-gym) is left out, and its tests are skipped: pip has to compile pycosat,
and there is no C compiler here, or no Python.h. Install them (Debian: gcc python3-dev), then: make clean install"""


def can_compile() -> bool:
    """True if a C compiler and Python's headers are there."""
    compiler: str = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(compiler.split()[0]) is not None and headers.is_file()


def main(argv: Sequence[str] | None = None) -> None:
    """Print extras, separated by commas."""
    (given,) = sys.argv[1:] if argv is None else argv
    extras = given.split(",")
    if COMPILED in extras and not can_compile():
        extras.remove(COMPILED)
        print(NOTE, file=sys.stderr)
    print(",".join(extras))


if __name__ == "__main__":
    main()
