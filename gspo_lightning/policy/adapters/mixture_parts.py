"""Parts of a mixture of experts that get no adapters: its experts, what chooses among them, and what PEFT cannot name.

transformers keeps the experts of a layer as weights [E, ...], not as linear layers, and PEFT wraps such a parameter in
ways that an export, the samplers and a later start do not follow. An adapted router would choose other experts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd


@dataclass(frozen=True)
class MixtureParts:
    """Names of the modules of a mixture that hold experts, and of those that choose or weigh them."""

    experts: tuple[str, ...]
    routers: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module) -> MixtureParts:
        """Find the parts by the shapes of their weights, also on the meta device; none in a dense model."""
        experts = []
        routers: dict[str, None] = {}
        for name, module in model.named_modules():
            count = _experts_in(name, module)
            if count:
                experts.append(name)
                routers |= dict.fromkeys(_routers_beside(model, name, count))
        return cls(tuple(experts), tuple(routers))

    def __bool__(self) -> bool:
        """True if the model is a mixture."""
        return bool(self.experts)

    def hold(self, name: str) -> bool:
        """True if a module is one of these parts, or inside one."""
        return any(name == part or name.startswith(f"{part}.") for part in self.experts + self.routers)

    @property
    def short(self) -> str:
        """Names of the parts inside a layer, such as ``mlp.experts, mlp.gate``."""
        return ", ".join(dict.fromkeys(re.sub(r"^.*\.\d+\.", "", name) for name in self.experts + self.routers))


def _experts_in(name: str, module: nn.Module) -> int:
    """Return the number of experts that a module holds, 0 if none: weights [E, ...], or a list of modules."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return len(module) if name.endswith("experts") and len(module) > 1 else 0
    if isinstance(module, _ConvNd):
        return 0
    return next((p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3 and p.shape[0] > 1), 0)


def _routers_beside(model: nn.Module, experts: str, count: int) -> Iterator[str]:
    """Yield the modules of a mixture's layer that give a number per expert, or one that weighs a shared expert."""
    parent = experts.rpartition(".")[0]
    for name, module in model.get_submodule(parent).named_modules(prefix=parent):
        weight: Any = getattr(module, "weight", None)
        inside = name == experts or name.startswith(f"{experts}.")
        if not inside and isinstance(weight, nn.Parameter) and weight.dim() == 2 and weight.shape[0] in (1, count):
            yield name


def linear_layers(model: nn.Module, parts: MixtureParts) -> list[str]:
    """Return full names of the linear layers of a mixture that can have adapters; the output head is not among them.

    PEFT cannot name some of them: of a family whose experts once were layers, it takes those of a shared expert with
    the same names for experts, when it reads an export, too.
    """
    whole: Any = model
    head = whole.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and not parts.hold(name)
    ]
    leaves = {_leaf(name) for name in layers}
    taken_for_experts = {leaf for leaf in leaves if asks_peft_for_experts(model, [leaf])}
    return [name for name in layers if _leaf(name) not in taken_for_experts]


def matched_modules(model: nn.Module, pattern: str) -> list[str]:
    """Return full names of the modules that a regular expression matches: PEFT takes all with the same last names."""
    matches = _matcher(pattern)
    return [name for name, _ in model.named_modules() if matches(name)]


def names_experts(model: nn.Module, parts: MixtureParts, target_modules: Sequence[str] | str) -> bool:
    """True if ``target_modules`` names experts or routers, or layers that PEFT takes for experts of this family."""
    matches = _matcher(target_modules)
    layers = {_leaf(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    inside = [name for name, _ in model.named_modules() if parts.hold(name)]
    for experts in parts.experts:  # down_proj may be a weight of experts, and a layer of a shared one that is meant
        weights = model.get_submodule(experts).named_parameters()
        inside += [f"{experts}.{name}" for name, _ in weights if _leaf(name) not in layers]
    return any(map(matches, inside)) or asks_peft_for_experts(model, target_modules)


def asks_peft_for_experts(model: nn.Module, target_modules: Sequence[str] | str) -> bool:
    """True if PEFT turns these names into experts: of many families, ``gate_proj`` of any layer, as they were once."""
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # before 0.19, PEFT took names as they are
        return False
    from peft import LoraConfig

    names = target_modules if isinstance(target_modules, str) else list(target_modules)
    config = LoraConfig(target_modules=copy.copy(names))
    try:
        convert_peft_config_for_transformers(config, model=model, conversions=None)
    except ValueError:  # one of two that are fused
        return True
    return bool(config.target_parameters)


def _matcher(target_modules: Sequence[str] | str) -> Callable[[str], bool]:
    """Return PEFT's match of a module's name."""
    if isinstance(target_modules, str):
        pattern = re.compile(target_modules)
        return lambda name: pattern.fullmatch(name) is not None
    return lambda name: any(name == target or name.endswith(f".{target}") for target in target_modules)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
