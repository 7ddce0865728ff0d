"""What a user writes and what a user gets told: constructors, YAML, bad input, start-up sentences, imports."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser

from gspo_lightning import objectives
from gspo_lightning.core import registry
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import ObjectiveOutput
from gspo_lightning.objectives import (
    CISPO,
    DAPO,
    DPPOTV,
    GMPO,
    GRPO,
    GSPO,
    LUSPO,
    PPO,
    REINFORCE,
    SAPO,
    VESPO,
    DrGRPO,
    GSPOToken,
    LossInputs,
    MultiScale,
    Objective,
    Rows,
    Segment,
    Term,
)
from tests.objectives.reference_formulas import CASES, DEFAULTS, FAMILY, NAMES, example, made, make_batch

ALL = [made(name) for name in FAMILY]


def test_imports_without_lightning_or_transformers() -> None:
    code = (
        "import sys, gspo_lightning.objectives, gspo_lightning.loop.advantages.within_groups\n"
        "heavy = {'lightning', 'transformers', 'jsonargparse', 'torchmetrics'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_objective_of_the_folder_is_exported_and_no_helper_is_registered() -> None:
    for module in pkgutil.iter_modules(objectives.__path__):
        importlib.import_module(f"{objectives.__name__}.{module.name}")
    ours = {k for k, v in registry.components("objectives").items() if v.__module__.startswith("gspo_lightning.")}
    assert ours == set(FAMILY) <= set(objectives.__all__)
    assert inspect.isabstract(Objective)
    assert inspect.isabstract(objectives.RatioClip)


def test_everything_exported_exists_and_bnpo_is_explained() -> None:
    assert all(hasattr(objectives, name) for name in objectives.__all__)
    assert "BNPO" in (objectives.__doc__ or "")


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_docstring_and_signature_serve_the_command_line(objective: Objective) -> None:
    doc = inspect.getdoc(type(objective)) or ""
    first, second, *_ = doc.split("\n")
    assert first.endswith(".")
    assert second == ""
    assert len(first) < 110
    assert "arXiv" in doc
    assert "Research" in first or "We differ in:" in doc
    parameters = inspect.signature(type(objective)).parameters.values()
    assert not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    assert not any(isinstance(p.annotation, str) for p in parameters), "would be unresolvable in a subclass"
    documented = [inspect.getdoc(c) or "" for c in type(objective).__mro__]  # without the margin, as in Python 3.13
    inherited = "\n".join(documented)
    assert all(f"\n    {p.name}: " in inherited for p in parameters), "every option is explained"


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_survives_pickle_and_copy(objective: Objective) -> None:
    for other in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        assert other == objective
        assert repr(other) == repr(objective)
        assert other.level == objective.level
    assert eval(repr(objective), vars(objectives)) == objective
    assert not isinstance(objective, torch.nn.Module)


def test_repr_shows_what_matters() -> None:
    assert repr(GSPO()) == "GSPO(clip_low=0.0003, clip_high=0.0004)"
    assert repr(GRPO(0.2, 0.2, kl_coef=0.1, correction="token")) == (
        "GRPO(kl_coef=0.1, correction='token', clip_low=0.2, clip_high=0.2)"
    )


def test_clip_attributes_for_start_up_checks() -> None:
    assert {type(o).__name__: (o.level, o.clip_low, o.clip_high) for o in ALL} == DEFAULTS


@pytest.mark.parametrize("objective", ALL, ids=lambda o: type(o).__name__)
def test_defaults_have_the_usual_scale(objective: Objective) -> None:
    assert objective.unusual_clip() is None


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (GSPO(0.2, 0.2), "3e-4"),
        (GSPO(3e-4, 0.2), "hardly ever clips"),
        (GSPOToken(0.2, 0.27), "2507.18071"),
        (LUSPO(0.2, 0.2), "2.5e-3"),
        (GRPO(3e-4, 4e-4), "almost every token"),
        (GRPO(3e-4, 0.27), "clip_low=0.0003"),
        (PPO(3e-4, 4e-4), "0.2"),
        (DAPO(3e-4, 4e-4), "0.28"),
        (DrGRPO(8, 3e-4, 4e-4), "0.2"),
        (GMPO(3e-4, 4e-4), "0.4 in log space"),
        (DPPOTV(3e-4, 4e-4), "probability"),
        (CISPO(1.0, 4e-4), "cap"),
        (MultiScale(1.0, 0.2, 0.2), "hardly ever"),
        (MultiScale(0.0, 3e-4, 4e-4), "almost every token"),
        (Segment(0.2, 0.2), "between"),
        (Segment(3e-4, 4e-4, segment_length=1), "almost every token"),
    ],
    ids=repr,
)
def test_a_clip_range_of_the_wrong_scale_is_explained(objective: Objective, says: str) -> None:
    sentence = objective.unusual_clip()
    assert sentence is not None
    assert says in sentence
    assert type(objective).__name__ in sentence


@pytest.mark.parametrize(
    "objective",
    [
        GSPO(0.01, 0.01),
        GSPO(0.2, 0.2, length_norm="sum"),
        GRPO(1e-3, 1e-3),
        CISPO(0.0, 0.1),
        Segment(0.05, 0.05),
        MultiScale(0.99, 1e-3, 1e-3),
    ],
    ids=repr,
)
def test_a_clip_range_within_the_family_is_accepted(objective: Objective) -> None:
    assert objective.unusual_clip() is None


BAD: list[tuple[type[Objective], dict[str, Any], str]] = [
    (GSPO, {"clip_low": 1.0}, "clip_low"),
    (GSPO, {"clip_low": 1.5}, "clip_low"),
    (GSPO, {"clip_low": -0.1}, "clip_low"),
    (GSPO, {"clip_high": -0.1}, "clip_high"),
    (GSPO, {"clip_high": float("nan")}, "clip_high"),
    (GSPO, {"clip_high": float("inf")}, "clip_high"),
    (GSPO, {"clip_low": "3e-4"}, "clip_low"),
    (GSPO, {"clip_low": True}, "clip_low"),
    (GSPO, {"length_norm": "median"}, "length_norm"),
    (GSPO, {"length_norm": -1.0}, "length_norm"),
    (GSPO, {"adaptive_length": 0.0}, "adaptive_length"),
    (GSPO, {"dual_clip": 1.0}, "dual_clip"),
    (GSPO, {"correction": "token"}, "GSPOToken"),
    (LUSPO, {"correction": "token"}, "correction"),
    (GMPO, {"correction": "token"}, "correction"),
    (GMPO, {"clip_low": -0.4}, "clip_low"),
    (GMPO, {"clip_high": -0.4}, "clip_high"),
    (CISPO, {"clip_low": 1.1}, "clip_low"),
    (CISPO, {"clip_high": -1.0}, "clip_high"),
    (DPPOTV, {"clip_low": 1.1}, "clip_low"),
    (DPPOTV, {"clip_high": 1.1}, "clip_high"),
    (SAPO, {"tau_pos": 0.0}, "tau_pos"),
    (SAPO, {"tau_neg": -1.0}, "tau_neg"),
    (VESPO, {"k_neg": -1.0}, "k_neg"),
    (VESPO, {"lambda_pos": -1.0}, "lambda_pos"),
    (DrGRPO, {"max_response_tokens": 0}, "max_response_tokens"),
    (MultiScale, {"alpha": 1.1}, "alpha"),
    (Segment, {"by": "word"}, "by"),
    (Segment, {"segment_length": 0}, "segment_length"),
    (REINFORCE, {"reduction": "mean"}, "reduction"),
    (GRPO, {"kl_coef": -1.0}, "kl_coef"),
    (GRPO, {"kl_estimator": "k4"}, "kl_estimator"),
    (GRPO, {"entropy_coef": -1.0}, "entropy_coef"),
    (GRPO, {"opsm_delta": -1.0}, "opsm_delta"),
    (GRPO, {"correction": "row"}, "correction"),
    (GRPO, {"correction_cap": 0.5}, "correction_cap"),
    (GRPO, {"correction_mode": "drop"}, "correction_mode"),
]


@pytest.mark.parametrize(("cls", "options", "says"), BAD, ids=lambda v: str(v) if isinstance(v, dict) else None)
def test_constructors_refuse_what_cannot_work(cls: type[Objective], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        cls(**options)
    assert repr(next(iter(options.values()))) in str(caught.value), "the value is named"


@pytest.mark.parametrize(
    ("objective"), [GSPO(0.0, 0.0), CISPO(1.0, 0.0), GRPO(0, 1), GMPO(5.0, 5.0), GSPO(length_norm=2)], ids=repr
)
def test_constructors_accept_the_edges(objective: Objective) -> None:
    assert torch.isfinite(objective(*example()).loss)


def call(**changes: Any) -> None:
    new, old, advantages, mask = make_batch(1, [2, 3])
    given: dict[str, Any] = {"logprobs": new, "old_logprobs": old, "advantages": advantages, "response_mask": mask}
    objective = changes.pop("objective", GSPO())
    objective(**(given | changes))


def _n(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logprobs": _n(2)}, r"logprobs: has shape \(2,\).*\[N, T\]"),
        ({"logprobs": _n(2, 4).long()}, "logprobs: has dtype torch.int64"),
        ({"old_logprobs": _n(2, 3)}, r"old_logprobs: has shape \(2, 3\).*\(2, 4\)"),
        ({"old_logprobs": _n(2, 4).long()}, "old_logprobs: has dtype"),
        ({"response_mask": _n(2, 4)}, "response_mask: has dtype torch.float64"),
        ({"response_mask": _n(2, 3).bool()}, r"response_mask: has shape \(2, 3\)"),
        ({"response_mask": _n(2, 4).bool()}, "response_mask: .*selects nothing"),
        ({"advantages": _n(3)}, r"advantages: has shape \(3,\).*\[N\] = \(2,\)"),
        ({"advantages": _n(2, 1)}, r"advantages: has shape \(2, 1\)"),
        ({"advantages": _n(2).long()}, "advantages: has dtype torch.int64"),
        ({"advantages": _n(2) / 0}, "advantages: has 2 NaN"),
        ({"advantages": _n(2, 4)}, r"advantages: .*one advantage per row(.|\n)*GSPOToken"),
        ({"advantages": _n(2, 4), "objective": LUSPO()}, "advantages"),
        ({"advantages": _n(2, 4), "objective": GMPO()}, "advantages"),
        ({"advantages": _n(2, 4), "objective": VESPO()}, "advantages"),
        ({"advantages": _n(2, 3), "objective": GRPO()}, r"\[N\] = \(2,\) or \[N, T\] = \(2, 4\)"),
        ({"ref_logprobs": _n(2, 3)}, r"ref_logprobs: has shape \(2, 3\)"),
        ({"behaviour_logprobs": _n(2, 3)}, "behaviour_logprobs: has shape"),
        ({"entropy": _n(2, 4).long()}, "entropy: has dtype"),
        ({"segments": _n(2, 4)}, "segments: has dtype"),
        ({"segments": _n(2, 3).long()}, "segments: has shape"),
        ({"segments": _n(2, 4).long() + 4}, r"segments: holds .*\[0, T\)"),
        ({"segments": _n(2, 4).long() - 1}, "segments: holds"),
        ({"objective": Segment(by="given")}, "segments: is None"),
        ({"objective": GSPO(kl_coef=0.1)}, "ref_logprobs: is None, but kl_coef=0.1"),
        ({"objective": GSPO(entropy_coef=0.1)}, "entropy: is None, but entropy_coef"),
        ({"objective": GSPO(correction="sequence")}, "behaviour_logprobs: is None, but correction='sequence'"),
        ({"denominator": -1.0}, "denominator: is -1.0"),
        ({"denominator": float("nan")}, "denominator: is nan"),
        ({"denominator": _n(2)}, r"denominator: has shape \(2,\)"),
        ({"logprobs": [[0.0]]}, "logprobs: has type list"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_calls_name_the_argument_and_the_rule(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        call(**changes)


@pytest.mark.parametrize("name", NAMES)
def test_count_adds_up_over_rows(name: str) -> None:
    objective = CASES[name].objective
    _, _, _, mask = make_batch(4, [3, 0, 2])
    expected = {"sequence_mean": 2.0, "token_mean": 5.0, "sequence_sum": 2.0}[objective.aggregation.value]
    count = objective.count(mask)
    assert count.dtype == torch.float64
    assert count.ndim == 0
    assert count == (expected if CASES[name].count is None else CASES[name].count)
    assert sum(objective.count(row) for row in mask.split(1)) == count


def parse(*argv: str) -> Objective:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--objective", type=Objective)
    found: Objective = parser.instantiate(parser.parse_args(list(argv))).objective
    return found


def test_the_command_line_builds_objectives_by_name() -> None:
    assert parse("--objective", "GSPO") == GSPO()
    assert parse("--objective", "GSPO", "--objective.clip_low", "1e-3") == GSPO(clip_low=1e-3)
    assert parse("--objective", "GSPO", "--objective.length_norm", "0.7") == GSPO(length_norm=0.7)
    assert parse("--objective", "DrGRPO", "--objective.max_response_tokens", "8") == DrGRPO(8)
    assert parse("--objective=Segment", "--objective.by=turn", "--objective.kl_coef=1e-3") == Segment(
        by="turn", kl_coef=1e-3
    )


def test_the_command_line_checks_types_of_inherited_options() -> None:
    for option in ("kl_estimator=k9", "correction=row", "kl_coef=much", "clip_low=small"):
        with pytest.raises(Exception, match=option.split("=", maxsplit=1)[0]):
            parse("--objective=GSPO", f"--objective.{option}")


def test_a_new_objective_is_a_few_lines() -> None:
    @dataclass(repr=False)
    class Quadratic(Objective):
        """Pulls the log-ratio towards the advantage."""

        strength: float = 1.0

        def term(self, rows: Rows) -> Term:
            gap = rows.log_ratio - self.strength * rows.token_advantages
            return Term(loss=gap.square(), ratio=rows.log_ratio.detach().exp())

    new, old, advantages, mask = example()
    out = Quadratic(0.5)(new, old, advantages, mask)
    expected = ((new - old - 0.5 * advantages.unsqueeze(-1)) ** 2 * mask).sum(-1) / mask.sum(-1)
    assert torch.allclose(out.loss, expected.mean())
    assert repr(Quadratic()) == "Quadratic(strength=1.0)"
    assert not out.clipped.any()
    assert Quadratic().clip_low is None


def test_a_loss_is_called_with_the_fields_of_its_inputs() -> None:
    names = [field.name for field in dataclasses.fields(LossInputs)]
    signature = inspect.signature(Objective.__call__)
    assert list(signature.parameters) == ["self", *names]
    positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", "logprobs", "old_logprobs", "advantages", "response_mask"]
    assert signature.parameters["entropy"].default is None
    mask = torch.ones(1, 2, dtype=torch.bool)
    old = torch.tensor([[-1.0, -2.0]])
    by_place = GSPO()(old, old, torch.ones(1), mask)
    by_name = GSPO()(response_mask=mask, advantages=torch.ones(1), old_logprobs=old, logprobs=old)
    assert float(by_place.loss) == float(by_name.loss) == -1.0
    with pytest.raises(TypeError, match="entropi"):
        GSPO()(old, old, torch.ones(1), mask, entropi=old)
    with pytest.raises(TypeError, match="response_mask"):
        GSPO()(old, old, torch.ones(1))
    with pytest.raises(TypeError, match="positional"):
        GSPO()(old, old, torch.ones(1), mask, old)


def test_an_objective_may_take_its_inputs_as_one() -> None:
    class Doubled(GSPO):
        def __call__(self, inputs: LossInputs) -> ObjectiveOutput:  # type: ignore[override]
            output = super().__call__(inputs)  # type: ignore[call-arg, arg-type]  # annotated with the fields
            return dataclasses.replace(output, loss=2 * output.loss)

    mask = torch.ones(1, 2, dtype=torch.bool)
    old = torch.tensor([[-1.0, -2.0]])
    assert float(Doubled()(old, old, torch.ones(1), response_mask=mask).loss) == -2.0


def test_a_new_input_per_token_is_one_field() -> None:
    """Rows check, detach and clear it by its declaration, and pass it on under its name."""
    mask = torch.tensor([[True, False]])
    old = torch.tensor([[-1.0, -2.0]])
    per_token = [f.name for f in dataclasses.fields(LossInputs) if "gradient" in f.metadata]
    assert {"ref_logprobs", "entropy", "teacher_kl"} <= set(per_token)
    values = {name: torch.full((1, 2), -3.0, requires_grad=True) for name in per_token}
    rows = Rows.of(LossInputs(**values, advantages=torch.ones(1), response_mask=mask))
    for field in dataclasses.fields(LossInputs):
        if "gradient" in field.metadata:
            value = getattr(rows, field.name)
            assert value.tolist() == [[-3.0, 0.0]], field.name
            assert value.requires_grad is field.metadata["gradient"], field.name
            wrong = values | {field.name: old[:, :1]}
            with pytest.raises(UserError, match="must be"):
                Rows.of(LossInputs(**wrong, advantages=torch.ones(1), response_mask=mask))
