"""``python -m gspo_lightning`` is ``gspo``."""

from gspo_lightning.cli import entry_point

if __name__ == "__main__":
    entry_point()
