"""Optimizers: settings that a class refuses, and fused Adam, which makes no temporary copies of all weights."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, MethodType

import torch
from torch import nn

from gspo_lightning.core.errors import UserError, first_line, frames_of, place_of
from gspo_lightning.policy.strategies.checks import check_one_set_of_weights

log = logging.getLogger(__name__)

Build = Callable[..., torch.optim.Optimizer]
"""Makes an optimizer from parameters: a class, or a function that knows the settings."""
FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Exactly these classes, not their subclasses."""


def decays(build: object) -> bool:
    """True for a class of optimizers that has a weight decay; most have one of their own by default (AdamW: 0.01).

    >>> decays(torch.optim.AdamW), decays(torch.optim.LBFGS), decays(print)
    (True, False, False)
    """
    if not (isinstance(build, type) and issubclass(build, torch.optim.Optimizer)):
        return False
    return "weight_decay" in inspect.signature(build).parameters


def undecayed(build: Build) -> Build:
    """Return what makes the optimizer, with a weight decay of 0 for a bare class, which says nothing about it.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> undecayed(torch.optim.AdamW)([weight]).defaults["weight_decay"]
    0.0
    """
    return partial(build, weight_decay=0.0) if decays(build) else build


@contextlib.contextmanager
def settings_of_optimizer() -> Iterator[None]:
    """Turn the refusal of settings by an optimizer that is built inside into a message; a plug-in's error stays.

    Raises:
        UserError: the optimizer refuses a setting.
    """
    try:
        yield
    except Exception as error:  # packages raise anything: NotImplementedError, RuntimeError, AttributeError
        frame = _constructor(error)
        if isinstance(error, UserError) or place_of(error) is not None or frame is None:
            raise
        raise _refusal(type(frame.f_locals["self"]).__name__, first_line(error), frame) from error


def try_optimizer(build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    """Build an optimizer over one weight, so that a wrong setting of PyTorch's is found before a model is loaded.

    Raises:
        UserError: the optimizer refuses a setting, or evaluates other weights than it trains.
    """
    try:
        with settings_of_optimizer():
            optimizer = build([nn.Parameter(torch.zeros(1, 1))])
        check_one_set_of_weights(optimizer)
    except UserError as error:
        if error.__cause__ is None or _is_of_torch(error):
            raise
    except Exception:  # others may want more than one weight; they are built with the real ones
        log.debug("the optimizer cannot be tried out", exc_info=True)


def _refusal(optimizer: str, message: str, frame: FrameType) -> UserError:
    # PyTorch's messages end with the value: "Invalid learning rate: -1.0"
    for name, value in _arguments(frame):
        if message.endswith(f" {value}"):
            problem = f"is {value}, which {optimizer} refuses: {message}"
            return UserError(f"model.optimizer.{name}", problem, fix=f"give a value that {optimizer} takes")
    problem = f"{optimizer} refuses the model's weights or a setting: {message}"
    return UserError("model.optimizer", problem, fix="change its settings, or use torch.optim.AdamW")


def _is_of_torch(error: UserError) -> bool:
    frame = _constructor(error.__cause__)
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.optim")


def _constructor(error: BaseException | None) -> FrameType | None:
    """Return the innermost frame of an optimizer's constructor in which an error arose; None if it arose elsewhere."""
    if error is None:
        return None
    innermost = None
    for frame, _ in frames_of(error.__traceback__):
        is_method = isinstance(frame.f_locals.get("self"), torch.optim.Optimizer)
        if is_method and frame.f_code.co_name == "__init__":
            innermost = frame
    return innermost


def _arguments(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield name and value of a constructor's arguments; an argument with several values gives each."""
    code = frame.f_code
    for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
        argument = frame.f_locals.get(name)
        values = argument if isinstance(argument, tuple | list) else (argument,)
        for value in values:
            yield name, value


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Use the fused kernel for Adam and AdamW on CPUs and CUDA, unless ``fused`` or ``foreach`` was set."""
    if type(optimizer) not in FUSED:
        return
    for group in optimizer.param_groups:
        has_kernel = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in group["params"])
        is_free = group["fused"] is None and group["foreach"] is None and not group["differentiable"]
        if has_kernel and is_free:
            group["fused"] = True


def take_closure(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer whose ``step()`` has no arguments (those of muon-optimizer and tauon) step as Lightning asks.

    Lightning passes ``closure``, which computes the gradients; it is called first. Such an optimizer may expect that
    there are gradients, so without any it does not step.

    >>> class Bare(torch.optim.Optimizer):
    ...     def step(self):
    ...         for p in self.param_groups[0]["params"]:
    ...             p.data -= p.grad
    >>> weight = nn.Parameter(torch.ones(1))
    >>> optimizer = Bare([weight], {})
    >>> take_closure(optimizer)
    >>> optimizer.step(closure=lambda: (2 * weight).sum().backward())
    >>> weight.item()
    -1.0
    """
    if inspect.signature(optimizer.step).parameters:
        return
    bare_step: Callable[[], object] = optimizer.step

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(p.grad is not None for group in self.param_groups for p in group["params"]):
            bare_step()
        return loss

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def adam_rate(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the largest learning rate of a kind of Adam; None for others, whose learning rate is no step size."""
    if "adam" not in type(optimizer).__name__.lower():
        return None
    return max(float(group["lr"]) for group in optimizer.param_groups)
