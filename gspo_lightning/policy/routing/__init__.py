"""Mixtures of experts: measure, record and replay the experts of each token."""

from gspo_lightning.policy.routing.balance import LoadBalance, expert_load
from gspo_lightning.policy.routing.measure import LOAD, routing_scalars, routing_sums, share_changed
from gspo_lightning.policy.routing.router_recording import RouterRecording, checkpoint_contexts, record_routers, routed
from gspo_lightning.policy.routing.routers import find_routers, hook_routers, routers_of
from gspo_lightning.policy.routing.routing import Replay, Routing, replay_word
from gspo_lightning.policy.routing.tokens import TokenPlaces, gather_routes, index_dtype, scatter_routes

__all__ = [
    "LOAD",
    "LoadBalance",
    "Replay",
    "RouterRecording",
    "Routing",
    "TokenPlaces",
    "checkpoint_contexts",
    "expert_load",
    "find_routers",
    "gather_routes",
    "hook_routers",
    "index_dtype",
    "record_routers",
    "replay_word",
    "routed",
    "routers_of",
    "routing_scalars",
    "routing_sums",
    "scatter_routes",
    "share_changed",
]
