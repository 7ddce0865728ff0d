"""Run ``python -m gspo_lightning`` as ``gspo``, without importing modules from the working directory."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]  # put there for ``-m``; a console script does not have it either
    from gspo_lightning.cli import entry_point

    entry_point()
