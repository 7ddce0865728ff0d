"""Memory of a training step, measured by the real forward and backward pass on fake tensors without data."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig

from gspo_lightning.commands.plan.models import shadow, skeleton, with_layers
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.attention import PackedLayout, Plan, attention_plan, with_plan
from gspo_lightning.policy.logprobs import head_chunk, token_logprobs
from gspo_lightning.policy.policy import Policy

Forward = Callable[..., Tensor]
"""Forward pass to a loss; takes the tracker that labels what it keeps."""
COPIES = "copies"
"""Label of weights cast to compute precision."""
GRADIENTS = "gradients"
"""Label of gradients that no earlier micro-batch has made."""
FEW = 2
"""Layers of the smaller model measured if the real one has more than twice as many; memory is linear in layers."""


class MemoryTracker(TorchDispatchMode):
    """Dispatch mode that sums the storages operations allocate and free, by the label at allocation.

    Args:
        weights: existing tensors; they and views of them are not counted.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {w.untyped_storage()._cdata for w in weights}
        self._kept = list(weights)
        self._alive: dict[int, str] = {}
        self.now: dict[str, int] = {}
        """Label -> bytes in use."""
        self.peaks: dict[str, dict[str, int]] = {}
        """Phase -> label -> bytes, at the peak of the phase."""
        self._label = "other"
        self._phase = ""
        self.enter("forward")

    def enter(self, phase: str) -> None:
        """Start a new phase with its own peak."""
        self._phase = phase
        self.peaks[phase] = dict(self.now)

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Count allocations within the context under this label."""
        outer = self._label
        self._label = name
        try:
            yield
        finally:
            self._label = outer

    def relabel(self, tensor: Tensor, name: str) -> None:
        """Count the storage of a tensor under another label from now on."""
        storage = tensor.untyped_storage()
        old = self._alive.get(storage._cdata)
        if old is not None:
            self.now[old] -= storage.nbytes()
            self.now[name] = self.now.get(name, 0) + storage.nbytes()
            self._alive[storage._cdata] = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, then count new storages."""
        if func is torch.ops.aten._grouped_mm.default:
            out = grouped_shape(*args)
        else:
            out = func(*args, **(kwargs or {}))
        cast = func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self._weights
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage(), COPIES if cast else self._label)
        return out

    def _count(self, storage: torch.UntypedStorage, label: str) -> None:
        key = storage._cdata
        if key in self._alive or key in self._weights:
            return
        size = storage.nbytes()
        self._alive[key] = label
        self.now[label] = self.now.get(label, 0) + size
        if sum(self.now.values()) > sum(self.peaks[self._phase].values()):
            self.peaks[self._phase] = dict(self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.now[self._alive.pop(key)] -= size


def grouped_shape(a: Tensor, b: Tensor, offsets: Tensor | None = None, *_: Any) -> Tensor:
    """Return the output of ``torch._grouped_mm`` by shape only; its own meta rule supports only bfloat16."""
    if a.dim() == 2 and b.dim() == 2:
        assert offsets is not None
        return a.new_empty(offsets.shape[0], a.shape[0], b.shape[1])
    return a.new_empty(*a.shape[:-1], b.shape[-1]) if a.dim() == 2 else a.new_empty(a.shape[1], b.shape[1])


@dataclass(frozen=True)
class Step:
    """Settings of a pass over a micro-batch."""

    dtype: torch.dtype = torch.float32
    """Dtype of the weights."""
    autocast: bool = False
    """bfloat16 compute on weights of another type (``bf16-mixed``)."""
    checkpointing: bool = False
    packed: bool = False
    lora: LoRA | None = None
    accumulates: bool = True
    """True if gradients of an earlier micro-batch exist already."""
    backward: bool = True
    """False for a forward pass without gradients (prefill, old log-probabilities)."""
    sharded: bool = False
    """True takes the output head that a policy has whose weights are gathered."""
    cpu: bool = True
    """False takes the chunks of logits that a GPU has, which are larger."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes besides the weights at the peak of a phase, by purpose."""

    activations: int
    """Bytes that the decoder layers keep for the backward pass."""
    temporaries: int
    """Bytes of logits, their gradients, and temporaries of a layer or the output head."""
    copies: int
    """Bytes of weights in compute precision, which the backward pass reads."""
    gradients: int
    """Bytes of gradients that exist at the peak and did not before; 0 if gradients existed already."""
    gathered: int = 0
    """Bytes of whole gradients before they are reduced to shards, beside temporaries; not measured."""

    @classmethod
    def of(cls, peak: Mapping[str, int]) -> Self:
        """Build from the labels of a tracker."""
        activations = peak.get("activations", 0)
        copies = peak.get(COPIES, 0)
        gradients = peak.get(GRADIENTS, 0)
        temporaries = sum(peak.values()) - activations - copies - gradients
        return cls(activations, temporaries, copies, gradients)

    @property
    def parts(self) -> tuple[int, int, int, int, int]:
        """Bytes in the order of the fields."""
        return self.activations, self.temporaries, self.copies, self.gradients, self.gathered

    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts)

    def beyond(self, other: StepMemory, steps: float) -> StepMemory:
        """Extrapolate linearly from this through ``other``, ``steps`` times their distance further; never below 0."""
        line = (b + (b - a) * steps for a, b in zip(self.parts, other.parts, strict=True))
        return StepMemory(*(max(0, round(value)) for value in line))


def measure_step(config: PretrainedConfig, batch: MicroBatch, step: Step) -> StepMemory:
    """Return the memory of the fullest phase of :func:`measure_phases`."""
    return max(measure_phases(config, batch, step).values(), key=StepMemory.total)


def measure_phases(config: PretrainedConfig, batch: MicroBatch, step: Step) -> dict[str, StepMemory]:
    """Measure a micro-batch on a model of this config: the full model, or a line through two with fewer layers.

    Each phase is extrapolated separately, because the number of layers determines which phase has the peak. Phases are
    ``forward``, and ``head``, ``layers`` and ``embedding`` of the backward pass, each named after what it begins with.
    """
    layers = int(config.get_text_config().num_hidden_layers)
    if layers <= 2 * FEW:
        return _run(config, batch, step)
    few, more = (_run(with_layers(config, n), batch, step) for n in (FEW, 2 * FEW))
    steps = (layers - 2 * FEW) / FEW
    return {phase: few[phase].beyond(more[phase], steps) for phase in more}


def _run(config: PretrainedConfig, batch: MicroBatch, step: Step) -> dict[str, StepMemory]:
    """Run a step on fake tensors; return phase -> memory at its peak."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = skeleton(config, step.lora)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # shapes of the other implementations depend on values
    if step.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if step.lora is not None:
            model.enable_input_require_grads()
    policy = Policy(shadow(model, step.dtype, mode), None)  # nothing is tokenized
    policy.gathering = SimpleNamespace(device="cpu", lockstep=False) if step.sharded else None
    forward = training_forward(policy, batch, packed=step.packed, cpu=step.cpu)
    weights = [w for w in policy.parameters() if w.requires_grad]
    if step.accumulates and step.backward:
        with mode:
            for weight in weights:
                weight.grad = torch.empty_like(weight)
    tracker = MemoryTracker([*policy.parameters(), *(w.grad for w in weights if w.grad is not None), *policy.buffers()])
    _mark_phases(policy, tracker)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(partial(_made, tracker=tracker))
    with warnings.catch_warnings(), mode, tracker:
        warnings.simplefilter("ignore")
        with torch.set_grad_enabled(step.backward), _autocast(step.autocast):
            loss = forward(tracker)
            if step.backward:
                with torch.autocast("cpu", enabled=False):
                    loss.backward()
    return {phase: StepMemory.of(peak) for phase, peak in tracker.peaks.items()}


def _autocast(enabled: bool) -> torch.autocast:
    """Return autocast as Lightning enters it: without a cache, so that a layer's copies go when it has been passed."""
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False)


def _made(weight: Tensor, tracker: MemoryTracker) -> None:
    """Count a gradient that is complete as one; a sum with an earlier one is no new storage."""
    assert weight.grad is not None
    tracker.relabel(weight.grad, GRADIENTS)


def _mark_phases(policy: Policy, tracker: MemoryTracker) -> None:
    """Register hooks that tell the tracker when backward reaches the output head, the layers and the embedding."""

    def returned(module: nn.Module, _: Any, output: Any, phase: str) -> None:
        hidden = output if isinstance(output, Tensor) else output.last_hidden_state
        if phase == "layers":
            tracker.enter("head")
        if hidden.requires_grad:
            hidden.register_hook(lambda _: tracker.enter(phase))

    policy.backbone.register_forward_hook(partial(returned, phase="layers"))
    policy.model.get_input_embeddings().register_forward_hook(partial(returned, phase="embedding"))


def training_forward(policy: Policy, batch: MicroBatch, *, packed: bool, cpu: bool) -> Forward:
    """Return the forward pass of a micro-batch to a loss, as a run computes it.

    Args:
        policy: on fake tensors.
        batch: on real ones.
        packed: the layout.
        cpu: see :class:`Step`.
    """
    return (_packed if packed else _padded)(policy, batch, cpu)


def _labelled(tracker: MemoryTracker | None) -> AbstractContextManager[None]:
    """Count what layers keep under a label of its own."""
    return nullcontext() if tracker is None else tracker.label("activations")


def _loss(policy: Policy, hidden: Tensor, targets: Tensor, cpu: bool) -> Tensor:
    """Return a scalar from the log-probabilities of the targets, with the chunks of a CPU or of a GPU."""
    chunk = head_chunk(len(targets), int(policy.model.config.get_text_config().vocab_size), cpu=cpu)
    return token_logprobs(policy._head(), hidden, targets, chunk=chunk)[0].sum()


class _InAutocastDtype:
    """Attention in the dtype that it has under autocast on a GPU: on a CPU, where this runs, it is in float32."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.longest = plan.longest

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend as :class:`Plan` says."""
        return self.plan.attend(layer, query.bfloat16(), key.bfloat16(), value.bfloat16(), scaling)


def _packed(policy: Policy, batch: MicroBatch, cpu: bool) -> Forward:
    """Return a forward pass as in :meth:`Policy.forward`; positions are computed from real lengths beforehand."""
    layout = PackedLayout.of(batch)
    plan = attention_plan(layout.segments, layout.crossings, layout.longest, torch.device("cpu"))
    ids = layout.token_ids.unsqueeze(0)
    positions = layout.positions.unsqueeze(0)

    def forward(tracker: MemoryTracker | None = None) -> Tensor:
        on_gpu = not cpu and torch.is_autocast_enabled("cpu")
        with _labelled(tracker), with_plan(policy.backbone, _InAutocastDtype(plan) if on_gpu else plan) as options:
            hidden = policy.backbone(input_ids=ids, position_ids=positions, **options).last_hidden_state.squeeze(0)
        return _loss(policy, hidden[layout.predicts], layout.targets, cpu)

    return forward


def _padded(policy: Policy, batch: MicroBatch, cpu: bool) -> Forward:
    layout = PackedLayout.of(batch)
    ids = batch.input_ids[:, :-1]
    before = batch.prompt_lengths[layout.rows] + layout.steps - 1
    mask = torch.ones_like(ids)
    positions = torch.arange(ids.shape[1]).expand(ids.shape[0], -1)

    def forward(tracker: MemoryTracker | None = None) -> Tensor:
        with _labelled(tracker):
            hidden = policy.backbone(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            ).last_hidden_state
        return _loss(policy, hidden[layout.rows, before], layout.targets, cpu)

    return forward
