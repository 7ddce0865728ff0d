"""The environments of ``make test-agents``: ``python -m tools.agents_environment FOLDER [NAME]`` prints one.

``NAME`` is ``agents`` (the clients), or ``openenv`` or ``verifiers``, which pin older versions of mcp. Each is built
once, at ``FOLDER/NAME-KEY``, as that of ``make test-vllm`` is. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.vllm_environment import UnavailableError, interpreter, make

NAMES = {"agents": "the clients", "openenv": "OpenEnv", "verifiers": "verifiers"}


def main(folder: str, name: str = "agents", pip_arguments: Sequence[str] = ()) -> int:
    """Build it if it is not there yet; its interpreter is the only thing on standard output."""
    constraints = Path(__file__).with_name(f"constraints-{name}.txt")

    def build(home: Path) -> None:
        make(home, [["--no-deps", "-r", constraints]], pip_arguments, NAMES[name])

    try:
        print(interpreter(Path(folder).absolute(), constraints, build, name, Path(__file__)))
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    named = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2] in NAMES else ""
    sys.exit(main(sys.argv[1], named or "agents", sys.argv[3 if named else 2 :]))
