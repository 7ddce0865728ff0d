"""Switch off whatever a model does at random in training: it would move s_i by more than the clip range.

Most families keep a rate of dropout or of router jitter as an attribute, and 0 switches it off. But a name proves
nothing: PhiMoE's ``router_jitter_noise`` is a threshold of its router that works in evaluation, too. So the model is
tested: a rate is noise only if no value of it moves the logits in eval mode. A remaining difference between train and
eval mode (PhiMoE draws its experts at random) is removed by keeping the modules in eval mode.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import PretrainedConfig, PreTrainedModel

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.policy.kernels.rounding import FLOOR, OPERATIONS, few_tokens, nudged

log = logging.getLogger(__name__)

TOKENS = 32
"""Length of the compared forward passes; routers and rare noise need more than a handful."""
LOUD = 0.9
"""Rate large enough to show any effect."""


@dataclass(frozen=True)
class DisabledDropout:
    """Changes made to a model: ``rates`` are config fields that are 0 now, with their former values, by name."""

    held: bool
    """True if modules must stay in eval mode (:func:`hold`): no rate switches the rest of the noise off."""
    rates: dict[str, float]

    @contextlib.contextmanager
    def undone(self, config: PretrainedConfig) -> Iterator[None]:
        """Restore the loaded config inside the context: an exported model may be fine-tuned with dropout again."""
        now = {name: getattr(config, name) for name in self.rates}
        for name, value in self.rates.items():
            setattr(config, name, value)
        try:
            yield
        finally:
            for name, value in now.items():
                setattr(config, name, value)


class _Rate:
    """Rate of dropout or jitter, wherever the model keeps it."""

    def __init__(self, holder: Any, name: str, value: float) -> None:
        self.holder = holder
        self.name = name
        self.value = value

    def set(self, value: float) -> None:
        setattr(self.holder, self.name, value)


@torch.no_grad()
def disable_dropout(model: PreTrainedModel) -> DisabledDropout:
    """Switch off what is random in train mode, and nothing else; the model's mode and all random states are restored.

    Raises:
        UserError: the model cannot be run on a few tokens, or its logits still differ in train mode.
    """
    rates = _rates(model)
    if not _has_data(model):  # no weights, only shapes: planning
        _set(rates, 0.0)
        return DisabledDropout(False, _changed(rates, model.config))
    kind = type(model).__name__
    with modes_kept(model), _random_states_kept(model):
        ids = few_tokens(model, TOKENS)
        try:
            _still(model, rates, ids)
            expected = _log_probabilities(model.eval(), ids)
            if not _moves(model.train(), ids, expected):
                return DisabledDropout(False, _changed(rates, model.config))
            hold(model)
            still_random = _moves(model, ids, _log_probabilities(model, ids))
            gap = _gap(_log_probabilities(model, ids), expected)
            limit = FLOOR.get(expected.dtype, 1e-5)
            if not still_random:  # deterministic, but computed differently than in eval mode
                with nudged(model.eval()):
                    limit += OPERATIONS * _gap(_log_probabilities(model, ids), expected)
        except UserError:
            raise
        except Exception as error:  # any exception: the family may be unknown
            raise UserError(
                "model.name_or_path",
                f"{kind} cannot be run on a few tokens: {first_line(error)}",
                fix="use another model family, or report this with the name of the model",
            ) from error
    if not gap <= limit:
        raise UserError(
            "model.name_or_path",
            f"{kind} gives log-probabilities in train mode that are {gap:.2g} nats from those in eval mode: ratios of "
            "unchanged weights would not be 1",
            fix="use another model family, or a setting of this one (model.config_overrides) without random numbers",
        )
    log.info("%s draws random numbers in train mode: its modules stay in eval mode", kind)
    return DisabledDropout(True, _changed(rates, model.config))


def hold(model: nn.Module) -> None:
    """Put every module into eval mode, except those that would not recompute their activations there."""
    for module in model.modules():
        if not getattr(module, "gradient_checkpointing", False):
            module.training = False


def _rates(model: PreTrainedModel) -> list[_Rate]:
    """Return all nonzero rates. Families keep them in dropout modules, attributes or their config."""
    rates: dict[tuple[int, str], _Rate] = {}
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            if holder is None:
                continue
            is_dropout = isinstance(holder, nn.modules.dropout._DropoutNd)
            for name, value in list(vars(holder).items()):
                is_rate = (is_dropout and name == "p") or "drop" in name or "jitter" in name
                if is_rate and isinstance(value, float) and value:
                    rates[id(holder), name] = _Rate(holder, name, value)
    return list(rates.values())


def _still(model: PreTrainedModel, rates: Sequence[_Rate], ids: Tensor) -> None:
    """Set rates to 0 that have no effect in eval mode at any value; leave the others alone."""
    if not rates:
        return
    model.eval()
    if not _act_in_evaluation(model, rates, ids):  # the usual case, tried at once
        _set(rates, 0.0)
        return
    by_name = defaultdict(list)
    for rate in rates:
        by_name[rate.name].append(rate)
    for name, group in by_name.items():
        if _act_in_evaluation(model, group, ids):
            log.info("%s.%s = %g is left alone: the model uses it in evaluation, too", type(model).__name__, name,
                     group[0].value)  # fmt: skip
        else:
            _set(group, 0.0)


def _act_in_evaluation(model: PreTrainedModel, rates: Sequence[_Rate], ids: Tensor) -> bool:
    """True if the rates move logits in eval mode; restores them."""
    logprobs = []
    try:
        for value in (0.0, LOUD):
            _set(rates, value)
            logprobs.append(_log_probabilities(model, ids))
    except Exception:  # the model rejects the value, so it is not a rate of noise
        return True
    finally:
        for rate in rates:
            rate.set(rate.value)
    return not torch.equal(*logprobs)


def _moves(model: PreTrainedModel, ids: Tensor, expected: Tensor) -> bool:
    """True if a forward pass draws random numbers (a few tokens need not show it) or gives other logits."""
    state = _random_state(ids.device)
    logprobs = _log_probabilities(model, ids)
    return not torch.equal(state, _random_state(ids.device)) or not torch.equal(logprobs, expected)


def _log_probabilities(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return log-probabilities [S, V]; a reward model's are of its states [S, D], since its output may be 0."""
    if model.get_output_embeddings() is None:
        logits = _states(model, ids)
    else:
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the last layer's states [S, D]; appends the end token that some classifiers look for."""
    end_ids = model.config.get_text_config().eos_token_id
    end_id = end_ids[0] if isinstance(end_ids, list) and end_ids else end_ids
    if isinstance(end_id, int):
        ids = torch.cat([ids, ids.new_tensor([[end_id]])], dim=1)
    outputs: list[Tensor] = []
    handle = model.base_model.register_forward_hook(lambda module, inputs, output: outputs.append(output[0]))
    try:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        handle.remove()
    return outputs[0][0]


def _gap(logprobs: Tensor, expected: Tensor) -> float:
    gap = float((logprobs - expected).abs().mean())
    return math.inf if math.isnan(gap) else gap


def _changed(rates: Sequence[_Rate], config: PretrainedConfig) -> dict[str, float]:
    return {
        rate.name: rate.value for rate in rates if rate.holder is config and getattr(config, rate.name) != rate.value
    }


def _set(rates: Sequence[_Rate], value: float) -> None:
    for rate in rates:
        rate.set(value)


def _has_data(model: nn.Module) -> bool:
    return not any(p.is_meta or isinstance(p.data, FakeTensor) for p in model.parameters())


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def _random_states_kept(model: PreTrainedModel) -> Iterator[None]:
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore every module's train or eval mode on exit."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
