"""The environment of ``make device-check-compile``: ``python -m tools.cuda_environment FOLDER`` prints its interpreter.

It has the CUDA build of torch with Triton and ptxas, which need no GPU to compile. It is built once, at
``FOLDER/cuda-KEY``, as that of ``make test-vllm`` is. Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.vllm_environment import UnavailableError, interpreter, make

CONSTRAINTS = Path(__file__).with_name("constraints-cuda.txt")


def main(folder: str, pip_arguments: Sequence[str] = ()) -> int:
    """Build it if it is not there yet; its interpreter is the only thing on standard output."""

    def build(home: Path) -> None:
        make(home, [["--no-deps", "-r", CONSTRAINTS]], pip_arguments, "the CUDA build of torch")

    try:
        print(interpreter(Path(folder).absolute(), CONSTRAINTS, build, "cuda", Path(__file__)))
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
