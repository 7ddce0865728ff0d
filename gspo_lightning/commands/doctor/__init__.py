"""``gspo doctor``: versions, devices, the sandbox and the noise of ratios on this machine."""

from gspo_lightning.commands.doctor.command import main

__all__ = ["main"]
