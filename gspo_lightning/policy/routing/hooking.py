"""Hook routers to replay, measure or balance them."""

from __future__ import annotations

from torch import nn

from gspo_lightning.errors import UserError
from gspo_lightning.policy.routing.routers import find_routers
from gspo_lightning.policy.routing.routing import Replay, Routing
from gspo_lightning.policy.routing.tape import ChoiceHooks

__all__ = ["hook_routers", "routers_of"]


def hook_routers(backbone: nn.Module, replay: Replay = "off") -> Routing | None:
    """Hook the routers of a model; return None if it has none.

    Raises:
        UserError: layers differ in their numbers of experts.
    """
    found = find_routers(backbone)
    if not found:
        return None
    shapes = {(router.experts, router.top_k) for router in found}
    if len(shapes) > 1:
        raise UserError(
            "model.name_or_path",
            f"{type(backbone).__name__} has layers with different (experts, experts per token): {sorted(shapes)}",
            fix="use model.router_metrics: false and model.routing_replay: off",
        )
    for layer, router in enumerate(found):
        hooks = ChoiceHooks(layer, router.call)
        router.module.register_forward_pre_hook(hooks.before)
        router.module.register_forward_hook(hooks.after, always_call=True)
    return Routing(len(found), found[0].experts, found[0].top_k, replay)


def routers_of(backbone: nn.Module, replay: Replay, metrics: bool | None, aux_loss_coef: float = 0.0) -> Routing | None:
    """Hook the routers of a model if they are replayed, measured or balanced; otherwise return None.

    Args:
        backbone: a transformers model without its head.
        replay: Routing Replay.
        metrics: True to measure; None: only if the model has routers.
        aux_loss_coef: weight of their load-balancing loss.

    Raises:
        UserError: the coefficient is negative, or the model has no routers but they are to be replayed, balanced, or
            measured (``metrics`` is True).
    """
    if not 0 <= aux_loss_coef < float("inf"):
        raise UserError("model.router_aux_loss_coef", f"is {aux_loss_coef}; it must be 0 or above")
    wanted = {
        "model.routing_replay": (replay != "off", replay),
        "model.router_aux_loss_coef": (aux_loss_coef > 0, aux_loss_coef),
        "model.router_metrics": (bool(metrics), "true"),
    }
    asked = [(field, value) for field, (yes, value) in wanted.items() if yes]
    if not asked and metrics is False:
        return None
    routing = hook_routers(backbone, replay)
    if routing is None and asked:
        field, value = asked[0]
        raise UserError(
            field,
            f"is {value}, but {type(backbone).__name__} has no routers: nothing in it chooses among experts",
            fix=f"leave {field} out, or use a mixture of experts such as tiny-qwen3-moe",
        )
    return routing
