"""TRL's own functions, run here on the same numbers: loss, gradient and clip fractions of every objective it has.

TRL keeps its losses in methods of its trainers. ``standin`` makes an instance of the real trainer class without a model
or a dataset, gives it a real ``GRPOConfig`` and lets the method that evaluates the model return our tensors; everything
between log-probabilities and loss (and, for advantages, between rewards and advantages) is then TRL's code.

Where the two differ by definition a test of its own shows the difference and says why. Not compared:

* ``top_entropy_quantile``: no counterpart here. ``use_bias_correction_kl`` neither, and it is on by default in TRL: the
  KL terms are compared with it off, and a test shows that they differ with it on.
* ``vespo`` with ``importance_sampling_ratio``: TRL multiplies it into the sequence ratio *inside* its weight function;
  here ``correction`` multiplies the loss, as for every other objective.
* asynchronous GRPO: the clip loss of ``dapo`` on packed rows, once more.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.types import ObjectiveOutput
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.within_groups import GroupMean, GroupNormalised, LeaveOneOut
from gspo_lightning.objectives import (
    CISPO,
    DAPO,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    SAPO,
    VESPO,
    DrGRPO,
    GSPOToken,
    Objective,
)
from tests.objectives.reference_formulas import run

SAME_NAME = [
    *("beta", "loss_type", "importance_sampling_level", "max_completion_length", "entropy_coef"),
    *("off_policy_mask_threshold", "top_entropy_quantile", "multi_objective_aggregation", "scale_rewards"),
    *("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
]
"""What TRL's trainers copy from their arguments under the same name."""
WIDTH = 7
LIMIT = 9  # max_completion_length of Dr. GRPO
REASON = "TRL is not installed: `make test-trl` (the extra 'bench', trl==1.16.0) runs this comparison"


@pytest.fixture(scope="module")
def trl() -> SimpleNamespace:
    """Imported when the first test of this file runs and not at collection: it costs seconds."""
    pytest.importorskip("trl", minversion="1.16", reason=REASON)
    from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
    from trl.experimental.gmpo import GMPOTrainer

    return SimpleNamespace(config=GRPOConfig, grpo=GRPOTrainer, gmpo=GMPOTrainer, rloo=RLOOTrainer)


@pytest.mark.skipif(os.environ.get("GSPO_TESTS_EXPECT") != "trl", reason="only make test-trl installs it")
def test_trl_is_really_compared_with_where_it_was_installed() -> None:
    from trl import __version__

    assert __version__.startswith("1.16.")


@dataclass
class Batch:
    """Float64 or float32 inputs; rows have different lengths and one has a gap (tool output) in its mask."""

    new: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.new, self.old, self.advantages, self.mask

    def part(self, rows: slice) -> Batch:
        return Batch(*(x[rows] for x in self.arguments))


def batch(seed: int, dtype: torch.dtype = torch.float64, *, scale: float = 0.3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(WIDTH) < torch.tensor([[7], [1], [4], [2], [6], [3]])
    mask[4, 2] = False
    old = -2 * torch.rand(6, WIDTH, generator=generator, dtype=torch.float64)
    new = old + scale * torch.randn(6, WIDTH, generator=generator, dtype=torch.float64)
    advantages = torch.randn(6, generator=generator, dtype=torch.float64)
    advantages[seed % 6] = 0.0
    return Batch(new.to(dtype), old.to(dtype), advantages.to(dtype), mask)


def standin(trl: SimpleNamespace, trainer: str, logprobs: Tensor, **settings: Any) -> Any:
    """An instance of TRL's trainer that has everything its loss reads, and no model."""
    base = getattr(trl, trainer)
    entropies = settings.pop("entropies", torch.zeros_like(logprobs))
    accumulation = settings.pop("accumulation", 1)
    sampled = settings.pop("vllm", False)
    args = trl.config(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        report_to=[],
        max_completion_length=LIMIT,
        per_device_train_batch_size=6,
        num_generations=6,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        **settings,
    )

    class Standin(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:  # the parent's would load a model
            self.args = args
            self.model = SimpleNamespace(training=True)
            self.current_gradient_accumulation_steps = accumulation
            self._metrics = {"train": defaultdict(list)}
            self.aux_loss_enabled = self.use_adaptive_entropy = False
            self.use_vllm = self.vllm_importance_sampling_correction = sampled
            self._entropy_bonus_enabled = args.entropy_coef != 0
            self.epsilon_low = args.epsilon
            self.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
            self.accelerator = SimpleNamespace(
                num_processes=1,
                process_index=0,
                device=torch.device("cpu"),
                sync_gradients=True,
                gather=lambda x: x,
                reduce=lambda x, reduction: x,
            )
            for name in SAME_NAME:
                setattr(self, name, getattr(args, name))

        def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
            return logprobs, entropies, None

    return Standin()


def trl_loss(trl: SimpleNamespace, trainer: str, given: Batch, **settings: Any) -> tuple[Tensor, Tensor, dict]:
    """TRL's loss, its gradient with respect to the log-probabilities, and the metrics it logs."""
    inputs = settings.pop("inputs", {})
    leaf = given.new.clone().requires_grad_()
    it = standin(trl, trainer, leaf, **settings)
    ids = torch.zeros_like(given.mask, dtype=torch.int64)
    completion_mask = given.mask.long()
    loss = it._compute_loss(
        it.model,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": completion_mask,
            "old_per_token_logps": given.old,
            "old_logps": (given.old * completion_mask).sum(1),
            "advantages": given.advantages,
            "num_items_in_batch": completion_mask.sum(),
        }
        | inputs,
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient, {k: v[0] for k, v in it._metrics["train"].items()}


def differences(
    trl: SimpleNamespace, case: Case, given: Batch, **options: Any
) -> tuple[float, float, dict, ObjectiveOutput]:
    """Largest difference of loss and gradient; TRL's metrics; our output."""
    theirs, their_gradient, metrics = trl_loss(trl, case.trainer, given, **case.settings, **options)
    out, gradient = run(case.ours, *given.arguments)
    loss = (out.loss - theirs).abs() / theirs.abs().clamp(min=1)
    return float(loss), float((gradient - their_gradient).abs().max()), metrics, out


@dataclass
class Case:
    ours: Objective
    trainer: str
    settings: dict[str, Any] = field(default_factory=dict)
    clips: str | None = None
    """The metric of ours that TRL calls ``clip_ratio/region_mean``."""


TOKENS, SEQUENCES = "clip_fraction_tokens", "clip_fraction_sequences"
KL = {"beta": 0.3, "use_bias_correction_kl": False}
CLIP = {"epsilon": 0.1, "epsilon_high": 0.15}
SEQUENCE = {"importance_sampling_level": "sequence"}
SINGLE = float(torch.tensor(1.05, dtype=torch.float32))
"""TRL makes a float32 tensor of its temperatures, whatever the dtype of the log-probabilities."""

CASES: dict[str, Case] = {
    "GSPO": Case(GSPO(0.1, 0.15), "grpo", {"loss_type": "grpo", **SEQUENCE, **CLIP}, SEQUENCES),
    "GSPO dual clip": Case(
        GSPO(0.1, 0.15, dual_clip=1.2), "grpo", {"loss_type": "grpo", "delta": 1.2, **SEQUENCE, **CLIP}
    ),
    "GSPO-token": Case(GSPOToken(0.1, 0.15), "grpo", {"loss_type": "grpo", **SEQUENCE, **CLIP}, SEQUENCES),
    "GRPO": Case(GRPO(0.1, 0.15), "grpo", {"loss_type": "grpo", **CLIP}, TOKENS),
    "GRPO dual clip": Case(GRPO(0.1, 0.15, dual_clip=1.3), "grpo", {"loss_type": "grpo", "delta": 1.3, **CLIP}),
    "DAPO": Case(DAPO(0.1, 0.15), "grpo", {"loss_type": "dapo", **CLIP}, TOKENS),
    "DAPO dual clip": Case(DAPO(0.1, 0.15, dual_clip=1.3), "grpo", {"loss_type": "dapo", "delta": 1.3, **CLIP}),
    "BNPO, one micro-batch": Case(DAPO(0.1, 0.15), "grpo", {"loss_type": "bnpo", **CLIP}, TOKENS),
    "Dr. GRPO": Case(DrGRPO(LIMIT, 0.1, 0.15), "grpo", {"loss_type": "dr_grpo", **CLIP}, TOKENS),
    # TRL's epsilon_high is the cap itself
    "CISPO": Case(CISPO(1.0, 0.15), "grpo", {"loss_type": "cispo", "epsilon_high": 1.15}),
    "SAPO": Case(SAPO(1.0, SINGLE), "grpo", {"loss_type": "sapo"}),
    "SAPO, other temperatures": Case(
        SAPO(0.5, 2.0), "grpo", {"loss_type": "sapo", "sapo_temperature_pos": 0.5, "sapo_temperature_neg": 2.0}
    ),
    "LUSPO": Case(LUSPO(0.1, 0.15), "grpo", {"loss_type": "luspo", **SEQUENCE, **CLIP}, SEQUENCES),
    "LUSPO of token ratios": Case(DrGRPO(1, 0.1, 0.15), "grpo", {"loss_type": "luspo", **CLIP}, TOKENS),
    "VESPO": Case(VESPO(), "grpo", {"loss_type": "vespo"}),
    "GMPO": Case(GMPO(0.1, 0.15), "gmpo", CLIP, TOKENS),
    # TRL's RLOO clips the plain likelihood ratio of a response
    "RLOO": Case(GSPO(0.1, 0.15, length_norm="sum"), "rloo", CLIP, SEQUENCES),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_clip_fraction_are_those_of_trl(trl: SimpleNamespace, name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    exact = dtype == torch.float64
    clipped = 0
    for seed in range(6):
        given = batch(seed, dtype, scale=(0.3, 0.02, 0.8)[seed % 3])
        loss, gradient, metrics, out = differences(trl, case, given)
        assert loss <= (1e-14 if exact else 2e-6)
        assert gradient <= (1e-14 if exact else 2e-6)
        clipped += int(out.clipped.sum())
        if case.clips is not None:
            total, count = out.sums[case.clips]
            assert metrics["clip_ratio/region_mean"] == pytest.approx(float(total / count), abs=1e-6)
    assert (clipped > 0) == ("clip_ratio/region_mean" in metrics), "some ratios have to be clipped, if any can be"


@pytest.mark.parametrize("name", ["GSPO", "GRPO", "DAPO", "Dr. GRPO", "CISPO", "SAPO", "LUSPO", "VESPO", "GMPO"])
def test_kl_term_is_that_of_trl(trl: SimpleNamespace, name: str) -> None:
    """TRL has k3 only, aggregated like the objective."""
    case = CASES[name]
    ours = type(case.ours)(**(vars(case.ours) | {"kl_coef": 0.3}))
    given, reference = batch(1), batch(9).old
    theirs, their_gradient, metrics = trl_loss(
        trl, case.trainer, given, **case.settings, **KL, inputs={"ref_per_token_logps": reference}
    )
    out, gradient = run(ours, *given.arguments, ref_logprobs=reference)
    torch.testing.assert_close(out.loss, theirs, rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient, their_gradient, rtol=0, atol=1e-14)
    total, count = out.sums["kl_new_ref_k3"]
    assert metrics["kl"] == pytest.approx(float(total / count), abs=1e-6)


def test_the_kl_term_of_trl_is_multiplied_by_the_ratio_by_default(trl: SimpleNamespace) -> None:
    """``use_bias_correction_kl`` changes the gradient of the KL term from 1 - exp(-x) to x = new - ref, on-policy too.

    That is the gradient of k2, which the KL term has here with ``kl_estimator="k2"``.
    """
    given, reference = batch(1), batch(9).old
    given.new = given.old.clone()
    given.advantages[:] = 0.0
    _, theirs, _ = trl_loss(trl, "grpo", given, loss_type="grpo", beta=0.3, inputs={"ref_per_token_logps": reference})
    gradients = {
        k: run(GRPO(kl_coef=0.3, kl_estimator=k), *given.arguments, ref_logprobs=reference)[1] for k in ("k2", "k3")
    }
    torch.testing.assert_close(gradients["k2"], theirs, rtol=0, atol=1e-14)
    assert (gradients["k3"] - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["GSPO", "GRPO", "DAPO", "Dr. GRPO", "CISPO", "SAPO", "LUSPO", "VESPO"])
def test_off_policy_sequence_mask_is_that_of_trl(trl: SimpleNamespace, name: str) -> None:
    case = CASES[name]
    ours = type(case.ours)(**(vars(case.ours) | {"opsm_delta": 0.05}))
    dropped = 0
    for seed in range(4):
        given = batch(seed)
        theirs, their_gradient, _ = trl_loss(trl, case.trainer, given, **case.settings, off_policy_mask_threshold=0.05)
        out, gradient = run(ours, *given.arguments)
        torch.testing.assert_close(out.loss, theirs, rtol=0, atol=1e-14)
        torch.testing.assert_close(gradient, their_gradient, rtol=0, atol=1e-14)
        dropped += int(out.sums["opsm_dropped_sequences"][0])
    assert dropped > 0


# ---------------------------------------------------------------------------------------------------------------------
# Definitions that differ


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "dr_grpo", "luspo"])
def test_only_the_grpo_aggregation_makes_a_sequence_ratio_gspo(trl: SimpleNamespace, loss_type: str) -> None:
    """Eq. 5 is a mean over sequences. TRL's default aggregation (dapo) weighs each sequence by its length instead."""
    given = batch(0)
    out, gradient = run(GSPO(0.1, 0.15), *given.arguments)
    theirs, their_gradient, _ = trl_loss(trl, "grpo", given, loss_type=loss_type, **SEQUENCE, **CLIP)
    assert abs(float(theirs - out.loss)) > 1e-3
    lengths = given.mask.sum(-1).double()
    divisor = {"dapo": lengths.mean(), "bnpo": lengths.mean(), "dr_grpo": torch.tensor(LIMIT), "luspo": torch.tensor(1)}
    weights = lengths / divisor[loss_type]
    torch.testing.assert_close(their_gradient, gradient * weights.unsqueeze(-1), rtol=0, atol=1e-14)


def test_default_settings_of_trl_with_sequence_ratios_never_clip_what_gspo_clips(trl: SimpleNamespace) -> None:
    """epsilon = 0.2 is a token's range: on sequence ratios of a realistic size it changes nothing at all."""
    given = batch(0, scale=2e-3)
    _, _, metrics = trl_loss(trl, "grpo", given, **SEQUENCE)
    assert metrics["clip_ratio/region_mean"] == 0
    assert run(GSPO(), *given.arguments)[0].sums["clip_fraction_sequences"][0] > 0


def cut(trl: SimpleNamespace, given: Batch, loss_type: str) -> Tensor:
    """The gradient of a mini-batch that TRL takes in two halves."""
    halves = (given.part(slice(0, 3)), given.part(slice(3, 6)))
    inputs = {"num_items_in_batch": given.mask.sum()}
    return torch.cat(
        [trl_loss(trl, "grpo", h, loss_type=loss_type, accumulation=2, inputs=inputs, **CLIP)[1] for h in halves]
    )


@pytest.mark.parametrize("name", ["GRPO", "DAPO", "Dr. GRPO"])
def test_a_mini_batch_in_two_halves_is_that_of_trl(trl: SimpleNamespace, name: str) -> None:
    given = batch(2)
    _, gradient = run(CASES[name].ours, *given.arguments)
    torch.testing.assert_close(cut(trl, given, CASES[name].settings["loss_type"]), gradient, rtol=0, atol=1e-14)


def test_bnpo_depends_on_the_cut_and_is_left_out_for_that(trl: SimpleNamespace) -> None:
    given = batch(2)
    _, whole, _ = trl_loss(trl, "grpo", given, loss_type="bnpo", **CLIP)
    relative = (cut(trl, given, "bnpo") - whole).abs().max() / whole.abs().max()
    assert relative > 0.05


def test_empty_rows_are_counted_by_trl_and_not_here(trl: SimpleNamespace) -> None:
    """A masked (truncated, missing) row shrinks TRL's step; the token aggregations agree."""
    given = batch(3)
    given.mask[2] = False
    for name, scale in (("GSPO", 6 / 5), ("GRPO", 6 / 5), ("Dr. GRPO", 6 / 5), ("LUSPO", 6 / 5), ("DAPO", 1.0)):
        theirs, their_gradient, _ = trl_loss(trl, "grpo", given, **CASES[name].settings)
        out, gradient = run(CASES[name].ours, *given.arguments)
        torch.testing.assert_close(out.loss, theirs * scale, rtol=0, atol=1e-14)
        torch.testing.assert_close(gradient, their_gradient * scale, rtol=0, atol=1e-14)


def test_values_at_masked_positions_enter_only_trl(trl: SimpleNamespace) -> None:
    """TRL multiplies by the mask after exp: one infinity under the mask is enough for a NaN."""
    given = batch(4)
    clean, clean_gradient = run(GSPO(0.1, 0.15), *given.arguments)
    given.new[1, 3] = math.inf
    theirs, _, _ = trl_loss(trl, "grpo", given, **CASES["GSPO"].settings)
    out, gradient = run(GSPO(0.1, 0.15), *given.arguments)
    assert torch.isnan(theirs)
    assert torch.equal(out.loss, clean.loss)
    assert torch.equal(gradient, clean_gradient)


def test_a_two_sided_clip_below_the_upper_bound_is_not_dual_clip(trl: SimpleNamespace) -> None:
    """``delta`` caps the ratio for either sign of the advantage: below 1 + clip_high it takes the place of that bound.

    Dual clip concerns negative advantages only. Above 1 + clip_high, as both papers mean it, the two are equal: see the
    cases above.
    """
    given = batch(0)
    theirs, gradient, _ = trl_loss(trl, "grpo", given, loss_type="grpo", epsilon=0.1, epsilon_high=0.5, delta=1.2)
    positive = given.advantages > 0
    ratio = (given.new - given.old).exp()
    assert (positive.unsqueeze(-1) & given.mask & (ratio > 1.2) & (ratio < 1.5)).any()
    out, _ = run(GRPO(0.1, 0.5, dual_clip=1.2), *given.arguments)
    assert abs(float(out.loss - theirs)) > 1e-3
    _, ours = run(GRPO(0.1, 0.2), *given.arguments)  # where the advantage is positive
    torch.testing.assert_close(ours[positive], gradient[positive], rtol=0, atol=1e-14)


def test_the_default_range_of_trl_caps_the_weights_of_cispo_at_a_fifth(trl: SimpleNamespace) -> None:
    """Its ``epsilon_high`` is the cap itself for this loss, and defaults to epsilon = 0.2."""
    given = batch(0, scale=0.02)
    _, their_gradient, _ = trl_loss(trl, "grpo", given, loss_type="cispo")
    _, gradient = run(CISPO(1.0, 0.0), *given.arguments)
    ratio = (given.new - given.old).exp().clamp(max=1.0)
    torch.testing.assert_close(their_gradient * ratio, gradient * 0.2, rtol=0, atol=1e-14)


def test_the_entropy_bonus_is_a_mean_over_tokens_whatever_the_objective_in_trl(trl: SimpleNamespace) -> None:
    """Here it is aggregated like the objective, so that it does not depend on the cut of a mini-batch either."""
    given = batch(0)
    entropies = batch(5).old.abs()
    differ = []
    for name in ("DAPO", "GRPO", "GSPO"):
        case = CASES[name]
        theirs, _, _ = trl_loss(
            trl, case.trainer, given, **case.settings, entropy_coef=0.5, entropies=entropies.requires_grad_()
        )
        ours = type(case.ours)(**(vars(case.ours) | {"entropy_coef": 0.5}))
        out, _ = run(ours, *given.arguments, entropy=entropies)
        differ.append(abs(float(out.loss - theirs)))
        rows, tokens = (entropies * given.mask).sum(-1) / given.mask.sum(-1), entropies[given.mask]
        gap = 0.0 if name == "DAPO" else 0.5 * float(tokens.mean() - rows.mean())
        assert float(out.loss - theirs) == pytest.approx(gap, abs=1e-14)
    assert differ[0] < 1e-14 < 1e-3 < differ[1]


# ---------------------------------------------------------------------------------------------------------------------
# From rewards to advantages, and from the sampler's log-probabilities to weights


def score(
    trl: SimpleNamespace, rewards: Tensor, group: int, *, old: Tensor | None = None, sampled: Tensor | None = None,
    **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """What TRL makes of generated completions and their rewards; all completions are as long as they can be."""
    count = len(rewards)
    width = 1 if old is None else old.shape[1]
    it = standin(trl, "grpo", torch.zeros(count, width) if old is None else old, **settings, vllm=sampled is not None)
    it.model = torch.nn.Linear(1, 1)
    it.model.is_gradient_checkpointing = False
    it.num_generations, it.num_iterations, it.reward_funcs, it.reward_func_names = group, 1, [None], ["reward"]
    it.environment_factories = it.environments = it.tools = it.ref_model = it.pad_to_multiple_of = None
    it.mask_truncated_completions = it.log_multimodal = False
    it._tokenizer = SimpleNamespace(pad_token_id=0)
    it._pending_extra_logs, it._pending_metrics = {}, {}
    it.reward_weights = torch.ones(1, dtype=rewards.dtype)
    it._logs = defaultdict(list) | {"rewards": defaultdict(list), "extra": defaultdict(list)}
    ids = [[1] * width] * count
    logps = None if sampled is None else sampled.tolist()
    it._generate = lambda prompts: ([[1]] * count, ids, None, ids, logps, {}, None, None)
    it._calculate_rewards = lambda *_: rewards.unsqueeze(-1)
    found: dict[str, Tensor] = it._generate_and_score_completions([{"prompt": "p"}] * count)
    return found


ADVANTAGES: list[tuple[str, Advantages]] = [("group", GroupNormalised(eps=1e-4)), ("none", GroupMean())]


@pytest.mark.parametrize(("scale", "ours"), ADVANTAGES, ids=lambda v: v if isinstance(v, str) else "")
def test_advantages_are_those_of_trl(trl: SimpleNamespace, scale: str, ours: Advantages) -> None:
    """Groups of three (TRL's K / (K - 1) is a float32) with one missing reward; TRL adds 1e-4 to the deviation."""
    rewards = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rewards[5] = math.nan
    theirs = score(trl, rewards, 3, scale_rewards=scale)["advantages"]
    torch.testing.assert_close(ours(rewards, torch.arange(12) // 3), theirs, rtol=0, atol=1e-14)


def test_dead_groups_are_exactly_zero_only_here(trl: SimpleNamespace) -> None:
    """Three times 0.1 has a mean that is not 0.1: TRL keeps the rounding error, divided by 1e-4."""
    rewards = torch.full((6,), 0.1, dtype=torch.float64)
    theirs = score(trl, rewards, 3)["advantages"]
    assert 0 < float(theirs.abs().max()) < 1e-9
    assert not GroupNormalised(eps=1e-4)(rewards, torch.arange(6) // 3).any()


def test_leave_one_out_with_the_plain_ratio_is_rloo(trl: SimpleNamespace) -> None:
    """On-policy and unclipped, TRL's RLOO is the gradient of REINFORCE on these advantages."""
    given = batch(0)
    given.new = given.old.clone()
    given.advantages = LeaveOneOut()(torch.tensor([1.0, 0.0, 0.0, 2.0, 1.0, 0.5]).double(), torch.arange(6) // 3)
    loss, gradient, _, out = differences(trl, CASES["RLOO"], given)
    assert loss < 1e-14
    assert gradient < 1e-14
    assert not out.clipped.any()


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_token_weights_for_a_foreign_sampler_are_those_of_trl(trl: SimpleNamespace, mode: str) -> None:
    given = batch(0)
    given.mask[:] = True  # the scoring path has completions of one length here
    behaviour = given.old - 0.6 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    behaviour = behaviour.float().double()  # TRL keeps the sampler's log-probabilities in float32
    settings = {"vllm_importance_sampling_mode": f"token_{mode}", "vllm_importance_sampling_clip_max": 2.0}
    with torch.no_grad():
        weights = score(trl, torch.arange(6.0), 6, old=given.old, sampled=behaviour, **settings)
    ratio = weights["importance_sampling_ratio"]
    assert (ratio == (2.0 if mode == "truncate" else 0.0)).any()
    for name in ("GSPO-token", "GRPO", "DAPO", "CISPO", "SAPO"):
        case = CASES[name]
        theirs, their_gradient, _ = trl_loss(
            trl, case.trainer, given, **case.settings, vllm=True, inputs={"importance_sampling_ratio": ratio}
        )
        ours = type(case.ours)(**(vars(case.ours) | {"correction": "token", "correction_mode": mode}))
        out, gradient = run(ours, *given.arguments, behaviour_logprobs=behaviour)
        torch.testing.assert_close(out.loss, theirs, rtol=0, atol=1e-13)
        if name != "GSPO-token":  # there TRL's token weights meet one ratio per sequence, whose gradient mixes them
            torch.testing.assert_close(gradient, their_gradient, rtol=0, atol=1e-13)


def test_sequence_weights_are_a_geometric_mean_here_and_a_product_in_trl(trl: SimpleNamespace) -> None:
    given = batch(0)
    given.mask[:] = True
    behaviour = (given.old + 0.4).float().double()
    settings = {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 2.0}
    with torch.no_grad():
        found = score(trl, torch.arange(6.0), 6, old=given.old, sampled=behaviour, **settings)
    product = found["importance_sampling_ratio"].squeeze(-1)
    objective = GRPO(0.9, 9.0, correction="sequence")
    _, gradient = run(objective, *given.arguments, behaviour_logprobs=behaviour)
    _, plain = run(GRPO(0.9, 9.0), *given.arguments)
    alive = given.advantages != 0
    mean = (gradient / plain)[alive][:, 0]
    torch.testing.assert_close(mean, torch.full_like(mean, math.exp(-0.4)), rtol=1e-6, atol=0)
    torch.testing.assert_close(product, torch.full_like(product, math.exp(-0.4 * WIDTH)), rtol=1e-6, atol=0)
