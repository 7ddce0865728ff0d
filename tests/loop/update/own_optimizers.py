"""Optimizers as somebody would write them, which a run refuses; a plug-in of test_other_optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Closure = Callable[[], Any] | None


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD (arXiv 2405.15682): the weights y are trained, their average x is to be evaluated."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "steps": 0})

    def train(self) -> None:
        """Put y in the place of x."""
        self._move(lambda beta: 1 - beta)

    def eval(self) -> None:
        """Put x in the place of y."""
        self._move(lambda beta: 1 - 1 / beta)

    def _move(self, share: Callable[[float], float]) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.data.lerp_(self.state[p]["z"], share(group["beta"]))

    def step(self, closure: Closure = None) -> Any:
        """Move y and z, and with y the average x."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                p.data.lerp_(z, 1 / group["steps"]).add_(p.grad, alpha=-group["lr"] * group["beta"])
                z.sub_(p.grad, alpha=group["lr"])
        return loss


class Forgetful(torch.optim.SGD):
    """Halves its step each time, and counts the steps in an attribute."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, lr)
        self.steps = 0

    def step(self, closure: Closure = None) -> Any:
        """Take a step half as large as the last."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad, alpha=group["lr"] * 0.5**self.steps)
        self.steps += 1
        return loss


class Lookahead(torch.optim.SGD):
    """Goes back half of the way at every fifth step (arXiv 1907.08610), and counts the steps in an attribute."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, lr)
        self.steps = 0

    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        """Take a step of SGD."""
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.steps % 5 == 0:
                    p.data.copy_(slow.lerp_(p.data, 0.5))
        return super().step(closure)


class NormalizedRows(torch.optim.SGD):
    """Divides the gradients of matrices of 1,024 numbers or more by the largest of their columns' norms."""

    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        """Take a step of SGD."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.dim() == 2 and p.numel() >= 1024:
                    local = getattr(p.grad, "_local_tensor", p.grad)
                    local.div_(local.norm(dim=0).max())
        super().step()
        return loss


class FromZero(torch.optim.SGD):
    """Computes weights from the sum of all gradients, as FTRL does: what they were before is lost."""

    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        """Put the sum in the place of the weights."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    total = self.state[p].setdefault("total", torch.zeros_like(p))
                    p.data.copy_(total.sub_(p.grad, alpha=group["lr"]))
        return loss


class Rule:
    """What an optimizer keeps beside tensors."""


class KeepsObjects(torch.optim.SGD):
    """Keeps an object of a class of its own in its state."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, lr)

    def step(self, closure: Closure = None) -> Any:  # type: ignore[override]
        """Take a step of SGD."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rule"] = Rule()
        return super().step(closure)


class ScaledByFirst(torch.optim.SGD):
    """Scales the steps of each matrix by its first gradient for good, as SGDSaI does (arXiv 2412.11768)."""

    def step(self, closure: Closure = None) -> Any:
        """Take a step; none where the first gradient was 0."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    scale = self.state[p].setdefault("scale", p.grad.norm())
                    p.data.sub_(scale * p.grad, alpha=group["lr"])
        return loss


class InProportion(torch.optim.SGD):
    """Steps in proportion to the norm of the weights, and never leaves 0."""

    def step(self, closure: Closure = None) -> Any:
        """Take a step as large as a share of the weights."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.any():
                    p.data.sub_(p.grad / p.grad.norm() * p.data.norm(), alpha=group["lr"])
        return loss
