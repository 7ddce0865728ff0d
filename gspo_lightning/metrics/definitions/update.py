"""The metrics of an update: its loss and gradient, what it does to the weights, what single objectives add."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Total
from gspo_lightning.metrics.definitions.spec import FULL, MetricSpec

__all__ = ["OBJECTIVE", "UPDATE"]

UPDATE = (
    MetricSpec(
        "loss",
        "the objective's loss of the whole mini-batch, summed over micro-batches and ranks",
        "advantage",
        "around 0, in the first update of an iteration minus its mean advantage; it does not fall",
        "Do not read progress from it: look at reward/mean and val/accuracy.",
        "Optimization",
        reading=Total("loss"),
    ),
    MetricSpec(
        "optim/gradient_norm",
        "L2 norm of the gradient of all trainable parameters, before clipping",
        "1",
        "up to 10 times its median (quickstart: 3 to 9); larger spikes are the first sign of an unstable run",
        "If spikes repeat, lower the learning rate or use a sequence-level ratio; gradient clipping only hides them.",
        "Optimization",
    ),
    MetricSpec(
        "optim/lr",
        "learning rate of the first parameter group in this update",
        "1",
        "the value set by the scheduler",
        "With bfloat16 weights and a rate below 1e-5 nothing moves: keep float32 weights and use bf16-mixed.",
        "Optimization",
    ),
    MetricSpec(
        "optim/loss_scale",
        "factor of the loss before backward, by which gradients are divided again",
        "1",
        "rises for a while, then falls by half now and then; optim/gradient_norm is 0 in an update that was left out",
        "If it falls again and again, gradients overflow at any scale: use bf16-mixed.",
        "Optimization",
        when="trainer.precision: 16-mixed",
    ),
    MetricSpec(
        "optim/gradient_spike",
        "optim/gradient_norm / median of the last 64 gradient norms above 0 before it",
        "1",
        "0.05 to 10; single spikes of 30 are seen in healthy runs (quickstart, seed 5: 26)",
        "Above 20 the collapse alarm rings; find the update's responses in dumps/ and read what was so surprising.",
        "Optimization",
        when="model.metrics: full or basic",
    ),
    MetricSpec(
        "update/gradient_noise",
        "variance / squared norm of the expectation of a mini-batch's gradient: the sums, over the last 64 updates, of "
        "the unbiased estimates from the norms of its micro-batches' gradients (McCandlish et al. 2018, A.1)",
        "1",
        "0.1 to 20 (quickstart, four micro-batches: 4 to 7); times the prompts of a mini-batch it is the simple noise "
        "scale, in prompts with as many rows each",
        "Far above 1 larger mini-batches need almost proportionally fewer updates; far below 1 smaller ones suffice.",
        "Optimization",
        when="model.metrics: full, packed rows in two micro-batches or more, each group in one of them, no FSDP",
    ),
    MetricSpec(
        "update/changed",
        "trainable weights that are different after the update / all (every k-th, about a million of them)",
        "fraction",
        "1 with float32 weights, but for embeddings of tokens that never occur",
        "Far below 1 the step is smaller than the weights' precision: use float32 weights with bf16-mixed.",
        "Optimization",
        when=FULL,
    ),
    MetricSpec(
        "update/relative_norm",
        "L2 norm of the update / L2 norm of the weights before it (every k-th, about a million of them)",
        "1",
        "steady, about the learning rate x sqrt(weights) / L2 norm of the weights (quickstart: 1e-3 to 5e-3)",
        "If it grows, look at optim/lr and at the optimizer's second moments after a stretch of tiny gradients.",
        "Optimization",
        when=FULL,
    ),
    MetricSpec(
        "weights/<part>",
        "L2 norm of the trainable weights of a part: embedding, head, norms, router, experts, attention, mlp, other",
        "1",
        "moves by a few per cent over a run",
        "If one part grows steadily, add weight decay or lower its learning rate; a jump follows a gradient spike.",
        "Optimization",
        when=FULL,
    ),
)

OBJECTIVE = (
    MetricSpec(
        "objective/<name>",
        "sum / count over the mini-batch of what an objective measures beyond this table, such as clip_fraction_dual",
        "see the objective",
        "see the objective's description in gspo list objectives",
        "Look it up there; your own objective may report any number of them.",
        "Of single objectives",
        when="objectives and options that report more",
    ),
)
