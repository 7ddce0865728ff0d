"""The environment of ``make test-agents``: ``python -m tools.agents_environment FOLDER`` prints its interpreter.

It is built once, at ``FOLDER/agents-KEY``, as that of ``make test-vllm`` is. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.vllm_environment import UnavailableError, interpreter, make

CONSTRAINTS = Path(__file__).with_name("constraints-agents.txt")


def main(folder: str, pip_arguments: Sequence[str] = ()) -> int:
    """Build it if it is not there yet; its interpreter is the only thing on standard output."""

    def build(home: Path) -> None:
        make(home, [["--no-deps", "-r", CONSTRAINTS]], pip_arguments, "the clients")

    try:
        print(interpreter(Path(folder).absolute(), CONSTRAINTS, build, "agents", Path(__file__)))
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
