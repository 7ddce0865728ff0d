"""``gspo doctor``: versions, devices, the sandbox and the ratio noise of this machine."""

from gspo_lightning.commands.doctor.command import main

__all__ = ["main"]
