"""Try an optimizer on matrices before the first rollout, whole and sharded as the policy is, and on other weights."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, distribute_tensor

from gspo_lightning.core.distributed import fail_together, local
from gspo_lightning.core.errors import UserError, first_line, place_of

log = logging.getLogger(__name__)
Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

STEPS = 12
"""Enough for rules of every 5th or 10th step (Lookahead, SOAP)."""
BEFORE = 7
"""Steps before the checkpoint from which an optimizer goes on."""
ROWS = 128
"""Of each shard, and one row more; some rules begin at 8 or 128 rows."""
COLUMNS = 256
"""Other rules begin at 4,096 numbers, in blocks of 256."""
USUAL = 0.02
"""Standard deviation of weights that transformers begin with."""
SMALL = 16
"""Longest side of weights that are no matrices."""
ADAPTER = ("lora_A.default.weight", "lora_B.default.weight")
"""Ends of the names of an adapter's two matrices."""
RATE = 1e-2
TOLERANCE = 0.1
"""Largest difference between steps on shards and on whole matrices, relative to what the steps move.

Elementwise rules differ by rounding, 1e-6. Muon iterates in bfloat16, whose rounding is a few percent of its step.
Also the largest move of weights whose gradient is 0, relative to the weights.
"""
STUCK = 1e-3
"""Move of an adapter's weights, relative to that of usual weights, below which they count as not trained."""


def try_steps(build: Build, policy: nn.Module) -> None:
    """Refuse an optimizer that cannot step or resume, or forgets the weights, or steps otherwise on shards.

    Under FSDP2 it is given matrices that are sharded as the policy's are, under FSDP1 flat pieces of a matrix.

    Args:
        build: makes the optimizer from parameters.
        policy: with its parameters on the device of training; if they are sharded, this is a collective.

    Raises:
        UserError: the optimizer is refused.
    """
    flat = isinstance(policy, FullyShardedDataParallel)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    device = local(parameters[0]).device
    sharded = next((p for p in parameters if isinstance(p, DTensor)), None)
    start, gradients = _matrices(1 if sharded is None else sharded.device_mesh.size(), device)
    try:
        whole = _stepped(build, start, gradients)
        again = _stepped(build, start, gradients)
    except Exception as error:  # one of somebody's own may need other weights
        if not _is_of_a_library(build, start) and not _fails_on(build, parameters):
            log.debug("the optimizer cannot be tried out", exc_info=True)
            return
        raise _refusal(build, start, f"cannot step here: {first_line(error)}", "") from error
    _check_skipped(build, start, gradients)
    _check_rest(build, start)
    if any(name.endswith(ADAPTER) for name, p in policy.named_parameters() if p.requires_grad):
        _check_adapters(build, start, gradients)
    if not flat:
        _try_other_weights(build, parameters)
    if not torch.equal(whole, again):
        return  # it draws random numbers
    _check_resumed(build, start, gradients, whole)
    with fail_together():
        if sharded is not None:
            _compare(build, start, gradients, whole, partial(_placed, like=sharded))
        elif flat:
            for piece in (slice(start.numel() // 3), slice(start.numel() // 3, None)):
                _compare(build, start, gradients, whole, partial(_cut, piece=piece))


def _check_skipped(build: Build, start: Tensor, gradients: list[Tensor]) -> None:
    """Refuse an optimizer of a package that fails without gradients, which an update that teaches nothing has."""
    weight = nn.Parameter(start.clone())
    optimizer = _built(build, weight)
    _step(optimizer, weight, gradients[:1])
    weight.grad = None
    try:
        optimizer.step(closure=lambda: 0.0)
    except Exception as error:
        if place_of(error) is None:  # a plug-in's error stays its own
            problem = f"cannot step without gradients, as in an update that is skipped: {first_line(error)}"
            raise _refusal(build, start, problem, "") from error


def _check_rest(build: Build, start: Tensor) -> None:
    """Refuse an optimizer whose first step moves weights without a gradient: FTRL begins at 0, Gravity at random."""
    weight = nn.Parameter(start * (USUAL / start.std()))
    before = weight.detach().clone()
    optimizer = build([weight])
    for group in optimizer.param_groups:
        if "weight_decay" in group:  # what the user has set moves them, too
            group["weight_decay"] = 0.0
    _step(optimizer, weight, [torch.zeros_like(start)])
    moved = float((weight.detach() - before).norm() / before.norm())
    if moved > TOLERANCE:
        problem = f"forgets what a model has learned: where the gradient is 0, a step moves its weights by {moved:.0%}"
        raise _refusal(build, start, problem, "")


def _check_adapters(build: Build, start: Tensor, gradients: list[Tensor]) -> None:
    """Refuse an optimizer that hardly moves one of an adapter's matrices, or moves it out of all proportion.

    B begins at 0, so the first gradient of A is 0. Some rules scale all later steps by the first gradient (SGDSaI,
    RACS), divide by its square (ADOPT), or step in proportion to the weights (HyperBallAdamW).
    """
    usual = start * (USUAL / start.std())
    zeros = torch.zeros_like(start)
    expected = float((_stepped(build, usual, gradients) - usual).norm())
    if not expected > 0:
        return
    moves = {
        "whose first gradient is 0, as of matrix A": _stepped(build, usual, [zeros, *gradients]) - usual,
        "that begin at 0, as matrix B": _stepped(build, zeros, gradients),
    }
    for weights, move in moves.items():
        distance = float(move.norm())
        if not STUCK * expected < distance < expected / STUCK:
            problem = f"moves weights {weights} of every adapter, {distance / expected:.1g} times as far as usual ones"
            raise _refusal(build, start, problem, ", or train all weights")


def _try_other_weights(build: Build, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse an optimizer of a package that steps matrices only, if others are trained: norms, experts of a layer."""
    shapes = {p.dim(): p.shape for p in parameters if p.dim() not in (0, 2)}
    for count, shape in sorted(shapes.items()):
        start = torch.ones([min(size, SMALL) for size in shape], device=local(parameters[0]).device)
        try:
            _stepped(build, start, [torch.ones_like(start)])
        except Exception as error:
            if place_of(error) is not None:  # a plug-in's error stays its own
                continue
            kind = "dimension" if count == 1 else "dimensions"
            problem = f"cannot step weights of {count} {kind}, which the model has: {first_line(error)}"
            raise _refusal(build, start, problem, ", or train model.lora") from error


def _check_resumed(build: Build, start: Tensor, gradients: list[Tensor], whole: Tensor) -> None:
    """Compare the steps of an optimizer with those of another that goes on with its state from a checkpoint."""
    weight = nn.Parameter(start.clone())
    first = _built(build, weight)
    _step(first, weight, gradients[:BEFORE])
    file = io.BytesIO()
    try:
        torch.save(first.state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        problem = "keeps state that no checkpoint can be read with: objects of its package, or functions"
        raise _refusal(build, start, problem, "") from error
    second = build([weight])
    try:
        second.load_state_dict(state)
        _step(second, weight, gradients[BEFORE:])
    except Exception as error:
        raise _refusal(build, start, f"cannot go on with its own state: {first_line(error)}", "") from error
    if not torch.equal(weight.detach(), whole):
        problem = "goes on otherwise after a checkpoint: it keeps something outside of its state_dict()"
        raise _refusal(build, start, problem, "")


def _fails_on(build: Build, parameters: Sequence[nn.Parameter]) -> bool:
    """True if an optimizer of a package cannot step the policy's smallest matrix either; a plug-in's error stays."""
    whole = [p for p in parameters if p.dim() == 2 and not isinstance(p, DTensor)]
    if not whole:
        return False
    weight = min(whole, key=torch.numel).detach()
    try:
        _stepped(build, weight, [torch.ones_like(weight)])
    except Exception as error:
        return place_of(error) is None
    return False


def _compare(
    build: Build, start: Tensor, gradients: list[Tensor], whole: Tensor, shard: Callable[[Tensor], Tensor]
) -> None:
    """Compare this rank's shard after some steps with the same part of the whole matrix."""
    begin, expected = (local(shard(tensor)) for tensor in (start, whole))
    try:
        steps = _stepped(build, shard(start), [shard(gradient) for gradient in gradients])
    except Exception as error:
        raise _refusal(build, start, f"cannot step sharded weights: {first_line(error)}") from error
    moved = float((expected - begin).norm())
    difference = float((local(steps) - expected).norm())
    if difference > TOLERANCE * moved:
        share = f"{difference / moved:.0%} of a step" if moved else "a step"
        raise _refusal(build, start, f"needs whole matrices: its steps on shards are wrong by {share}")


def _stepped(build: Build, start: Tensor, gradients: list[Tensor]) -> Tensor:
    weight = nn.Parameter(start.clone())
    _step(_built(build, weight), weight, gradients)
    return weight.detach()


def _built(build: Build, weight: nn.Parameter) -> torch.optim.Optimizer:
    optimizer = build([weight])
    for settings in optimizer.param_groups:
        if isinstance(settings.get("lr"), float):
            settings["lr"] = RATE  # a small one is lost in rounding
    return optimizer


def _step(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: list[Tensor]) -> None:
    def closure(gradient: Tensor) -> float:
        weight.grad = gradient.clone()
        return 0.0

    for gradient in gradients:
        optimizer.step(closure=partial(closure, gradient))  # by name, as Lightning does


def _matrices(shards: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Return weights [R, C], and gradients of the same shape: upper rows have larger weights and smaller gradients.

    R is no multiple of the number of shards, and a norm or a mean over some rows is not that over all.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.linspace(1.0, 4.0, ROWS * shards + 1).unsqueeze(1)
    draws = [torch.randn(len(rows), COLUMNS, generator=generator) for _ in range(STEPS + 1)]
    return (draws[0] * rows.flip(0)).to(device), [(draw * rows).to(device) for draw in draws[1:]]


def _placed(tensor: Tensor, like: DTensor) -> Tensor:
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _cut(tensor: Tensor, piece: slice) -> Tensor:
    return tensor.flatten()[piece]


def _is_of_a_library(build: Build, start: Tensor) -> bool:
    """True for an optimizer of torch or bitsandbytes, which steps any float matrix or none."""
    try:
        optimizer = build([nn.Parameter(start)])
    except Exception:
        return False
    return type(optimizer).__module__.startswith(("torch.optim", "bitsandbytes"))


def _refusal(build: Build, start: Tensor, problem: str, instead: str = ", or trainer.strategy: ddp") -> UserError:
    optimizer = build([nn.Parameter(start)])
    fused = any(settings.get("fused") for settings in optimizer.param_groups)
    leave = "leave model.optimizer.fused out, or " if fused else ""
    return UserError(
        "model.optimizer", f"{type(optimizer).__name__}{' with fused: true' if fused else ''} {problem}",
        fix=f"{leave}use torch.optim.AdamW{instead}",
    )  # fmt: skip
