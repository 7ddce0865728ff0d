"""``python -m tests.updates``: see :mod:`tests.updates.table`."""

from __future__ import annotations

import sys

from tests.updates.table import main

if __name__ == "__main__":
    sys.exit(main())
