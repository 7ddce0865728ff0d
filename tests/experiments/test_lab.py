"""The lab: every declared grid can run, a grid of a moment runs, goes on where it was stopped and is reported."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.lab.__main__ import main
from experiments.lab.dro import DRO
from experiments.lab.grid import GRIDS, Cell, Grid, names
from experiments.lab.measures import MEASURES, reward_for_tokens
from experiments.lab.noise import EngineSampler, NoisySampler, RoundedSampler, engine_logits
from experiments.lab.results import Results, read
from experiments.lab.tasks import RewrittenChain
from gspo_lightning.cli import main as gspo
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Rollout, SamplingParams
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.report.run import Run, Series
from gspo_lightning.rollouts import Draws, GroupedSampler

TINY = """\
title: Tiny
about: A grid of a moment.
configs: [quickstart]
arguments:
  - --trainer.enable_progress_bar=false
  - --trainer.max_epochs=2
  - --trainer.check_val_every_n_epoch=1
  - '--trainer.callbacks=[{"class_path": "RunSummary", "init_args": {"report": false}}]'
  - --data.train.size=512
  - --data.val.size=8
  - --data.group_size=4
  - --data.max_response_tokens=12
  - --data.reward_workers=1
  - --data.prompts_per_rollout=4
  - --data.minibatches_per_rollout=2
  - --model.cold_start.demonstrations.size=512
  - --model.cold_start.steps=5
conditions:
  quiet: {seeds: 2, arguments: []}
  noisy: {seeds: 1, arguments: [--data.rollouts=experiments.lab.noise.NoisySampler, --data.rollouts.nats=0.5]}
variants:
  source: [--model.old_logprobs=source]
  breaks: [--model.old_logprobs=source, --model.optimizer.lr=1e30, --model.optimizer.weight_decay=1e30]
baseline: source
measures: [accuracy, reward, to_90, clipped, ratio_std, spike, collapsed]
"""


def test_every_grid_is_declared_and_its_cells_have_names_of_their_own() -> None:
    assert names() == [
        "advantages",
        "baselines",
        "baselines_turns",
        "collapses",
        "compute",
        "engine_noise",
        "group_size",
        "learning_rate",
        "length",
        "low_precision",
        "mismatch",
        "recipe",
    ]
    for name in names():
        grid = Grid.read(GRIDS / f"{name}.yaml")
        assert set(grid.measures) <= set(MEASURES)
        cells = [cell.name for cell in grid.cells()]
        assert len(set(cells)) == len(cells)


def test_a_condition_may_run_some_variants_only(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY.replace("noisy: {seeds: 1,", "noisy: {seeds: 1, variants: [breaks],"))
    cells = [(cell.condition, cell.variant, cell.seed) for cell in Grid.read(file).cells()]
    assert cells == [*(("quiet", v, s) for s in (1, 2) for v in ("source", "breaks")), ("noisy", "breaks", 1)]
    file.write_text(TINY.replace("noisy: {seeds: 1,", "noisy: {seeds: 1, variants: [braeks],"))
    with pytest.raises(ValueError, match=r"noisy runs variants that are not declared: \['braeks'\]"):
        Grid.read(file)


def cells_of(grid: Grid) -> list[Cell]:
    """Every variant in the first condition, every condition with the first variant: each argument once."""
    first, variant = next(iter(grid.conditions)), next(iter(grid.variants))
    return [cell for cell in grid.cells() if cell.seed == 1 and (cell.condition == first or cell.variant == variant)]


@pytest.mark.thorough(
    "advantages",
    "baselines_turns",
    "collapses",
    "compute",
    "engine_noise",
    "group_size",
    "learning_rate",
    "length",
    "low_precision",
    "mismatch",
    "recipe",
)
@pytest.mark.parametrize("name", names())
def test_every_argument_of_a_grid_is_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid.read(GRIDS / f"{name}.yaml")
    configs = [f"--config={config}" for config in grid.configs]
    for cell in cells_of(grid):
        assert gspo(["fit", *configs, *cell.arguments, "--print_config"]) == 0, cell
    assert "Task" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_grid_runs_in_pieces_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY)
    argv = [str(file), "--root", str(tmp_path / "runs"), "--output", str(tmp_path)]
    assert main([*argv, "--minutes", "0"]) == 0
    assert "**0 of 6 runs are there.**" in (page := (tmp_path / "tiny.md").read_text())
    assert "* quiet: 4 runs\n* noisy: 2 runs" in page
    assert main([*argv, "--minutes", "10"]) == 0
    page = (tmp_path / "tiny.md").read_text()
    assert "**6 of 6 runs are there.**" in page
    assert page.count("ended with exit code 1") == 3  # that a run broke is its result
    assert len(list((tmp_path / "runs/tiny/starts").glob("*/cold_start/*/model.safetensors"))) == 1
    results = read(Grid.read(file), tmp_path / "runs/tiny")
    assert len(results.failed) == 3
    quiet = results.values("quiet", "source", MEASURES["ratio_std"].of)
    noisy = results.values("noisy", "source", MEASURES["ratio_std"].of)
    assert 0 <= max(quiet.values()) < 1e-2 < noisy[1]
    reward = results.values("quiet", "source", MEASURES["reward"].of)
    assert f"| source | {statistics.mean(reward.values()):.3f} |" in page
    capsys.readouterr()
    assert main([*argv, "--minutes", "10"]) == 0  # nothing is made again
    assert capsys.readouterr().out.strip() == f"written: {tmp_path / 'tiny.md'}"
    file.write_text(TINY.replace("seeds: 2", "seeds: 1"))  # fewer runs are no other runs
    assert main([*argv, "--minutes", "0"]) == 0
    file.write_text(TINY.replace("--data.group_size=4", "--data.group_size=2"))
    assert main([*argv, "--minutes", "0"]) == 2
    assert "begun with other arguments than the grid has now" in capsys.readouterr().err


def test_rewritten_steps_are_those_of_the_task() -> None:
    records = list(RewrittenChain("train", 64, operands=6).records())
    assert [r["prompt"] for r in records] == [r["prompt"] for r in ChainTask("train", 64, operands=6).records()]
    for record in records:
        prompt, lines = record["prompt"], record["steps"].split(";")
        assert [len(line) for line in lines] == [11] * 5 + [0]
        value, left = int(prompt[0]), prompt[1:-1]
        for number, line in enumerate(lines[:-1], 1):
            value = {"+": value + int(left[1]), "-": value - int(left[1]), "*": value * int(left[1])}[left[0]] % 10
            left = left[2:]
            assert line == "=" * 2 * number + str(value) + left
        assert record["answer"] == str(value)
    (_, completion), *_ = RewrittenChain("cold_start", 8, operands=6, step_share=1.0).demonstrations()
    assert len(completion) == 2 * 6 * 5 + 2
    assert character_tokenizer().unk_token_id not in character_tokenizer()(completion).input_ids


@pytest.mark.thorough
def test_a_run_that_cannot_begin_is_a_mistake_in_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(
        TINY.replace("--model.optimizer.lr=1e30, --model.optimizer.weight_decay=1e30", "--data.temperature=-1")
    )
    assert main([str(file), "--root", str(tmp_path / "runs"), "--output", str(tmp_path), "--minutes", "10"]) == 2
    assert "exit code 2" in capsys.readouterr().err
    assert len(list(tmp_path.glob("runs/tiny/*/version_*/summary.json"))) == 1  # and nothing says that it was run
    assert not list(tmp_path.glob("runs/tiny/failed/*"))


def series(*values: float, every: int = 1) -> Series:
    return Series(np.arange(len(values)) * every, np.array(values, dtype=np.float64))


def test_measures_of_a_curve_that_is_known() -> None:
    run = Run(
        Path("x"),
        {
            "reward/mean": series(0.2, 0.8, 0.9, 0.3, every=2),
            "data/tokens_per_update": series(10, 10, 20, 20, 5, 5, 5, 5),
            "data/mini_batch": series(0, 1, 0, 1, 0, 1, 0, 1),
            "clip/tokens": series(0, 0.1, 0, 0.3, 0, 0.5, 0, 0.7),
            "optim/gradient_norm": series(1, 2, 2, 0, 8),
            "val/accuracy": series(0.2, 0.95, 0.99, every=4),
        },
        finished=True,
    )
    assert MEASURES["reward"].of(run, 70) == pytest.approx(0.55)
    assert MEASURES["clipped"].of(run, 70) == pytest.approx(0.4)
    assert MEASURES["spike"].of(run, 70) == 4  # a norm of 0 (nothing to learn from) is no gradient
    assert MEASURES["to_90"].of(run, 70) == 4
    assert MEASURES["learned"].of(run, 70) == 1  # 0.99 is above (0.2 + 1) / 2 ...
    for end, finished, learned in (
        (0.6, True, 1),
        (0.59, True, 0),
        (0.99, False, 0),
    ):  # ... and a run must reach its end
        other = Run(run.folder, {"val/accuracy": series(0.2, 0.95, end)}, finished=finished)
        assert MEASURES["learned"].of(other, 70) == learned
    assert MEASURES["collapsed"].of(run, 70) == 1  # .85 was its best over two iterations, .6 its end
    assert reward_for_tokens(run, 40) == pytest.approx((20 * 0.2 + 20 * 0.8) / 40)
    assert reward_for_tokens(run, 81) is None
    cut = Run(run.folder, {k: Series(v.steps[:4], v.values[:4]) for k, v in run.scalars.items()}, finished=True)
    both = Results({"c": {"long": {1: run}, "short": {1: cut}}})
    assert both.tokens("c") == 60
    of = MEASURES["reward_for_tokens"].of
    assert both.values("c", "long", of) == {1: pytest.approx((20 * 0.2 + 40 * 0.8) / 60)}


def test_dro_by_hand() -> None:
    new = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.5, -2.0], [-0.5, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    found = DRO(tau=2.0)(new, old, torch.tensor([3.0, -1.0]), mask)
    found.loss.backward()
    # log s = .25 and 0: -(3 * .25 - 1 * .25^2) / 2; (A - tau log s) / length / rows
    assert float(found.loss) == pytest.approx(-(0.75 - 0.0625) / 2)
    assert new.grad is not None
    assert new.grad.tolist() == [[-0.625, -0.625], [0.5, 0.0]]


def sampled(source: GroupedSampler, iteration: int = 0, temperature: float = 1.0) -> list[Rollout]:
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1))
    prompts = encode_prompts(ChainTask(size=2).records(), policy.tokenizer, max_prompt_tokens=16, field="train")
    draws = Draws.of(0, Purpose.TRAIN_SAMPLING, iteration)
    sampling = SamplingParams(200, temperature=temperature, stop_token_ids=())
    groups = source.generate(policy, prompts, group_size=2, draws=draws, sampling=sampling, version=iteration)
    return [rollout for group in groups for rollout in group]


def log_odds(rollout: Rollout) -> torch.Tensor:
    assert rollout.logprobs is not None
    return torch.logit(rollout.logprobs.double().exp())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["iid", "position"])
def test_noise_has_the_size_that_was_asked_for_and_changes_no_token(kind: str) -> None:
    exact, noisy = sampled(GroupedSampler()), sampled(NoisySampler(0.1, kind))  # type: ignore[arg-type]
    gaps = []
    for one, other in zip(exact, noisy, strict=True):
        assert one.token_ids.equal(other.token_ids)
        gaps.append(log_odds(other) - log_odds(one))
    assert all(0.08 < float(gap.std()) < 0.12 for gap in gaps)
    same = [bool((gaps[0] - gap).abs().max() < 1e-4) for gap in gaps[1:]]
    assert all(same) if kind == "position" else not any(same)
    again = sampled(NoisySampler(0.1, kind))  # type: ignore[arg-type]
    assert all(a.logprobs.equal(b.logprobs) for a, b in zip(noisy, again, strict=True))  # type: ignore[union-attr, arg-type]


@pytest.mark.thorough
def test_rounded_sampling_reports_other_log_probabilities() -> None:
    """float16 has three bits more than bfloat16: an eighth of the error."""
    gaps = {}
    for dtype in ("bfloat16", "float16"):
        exact, rounded = sampled(GroupedSampler()), sampled(RoundedSampler(dtype))  # type: ignore[arg-type]
        gaps[dtype] = sum(abs(float(a.logprobs[0] - b.logprobs[0])) for a, b in zip(exact, rounded, strict=True))  # type: ignore[index]
    assert 0 < gaps["float16"] < gaps["bfloat16"] / 3


def test_errors_of_an_engine_have_the_measured_shape() -> None:
    p = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64)
    rows = (p.log() + torch.linspace(-3, 3, 20_000, dtype=torch.float64)[:, None]).float()  # same policy, other bits
    errors = (engine_logits(rows, 0.15, 0.25, base=7) - rows).double()
    unsure = 0.15 * (1 - p)
    assert torch.allclose(errors.std(0), unsure, rtol=0.03)
    assert torch.allclose(errors.mean(0), 0.25 * unsure, rtol=0.1)
    scaled = (errors - errors.mean(0)) / errors.std(0)
    assert (scaled.pow(4).mean(0) - 6).abs().max() < 1  # Laplace's kurtosis; a normal one has 3
    assert scaled.flatten().pow(4).mean() > 5
    assert engine_logits(rows[:5], 0.15, 0.25, base=7).equal(rows[:5] + errors[:5].float())  # of a context, not a call
    assert not engine_logits(rows[:5], 0.15, 0.25, base=8).equal(rows[:5] + errors[:5].float())


@pytest.mark.thorough
def test_an_engine_samples_from_the_policy_that_it_reports() -> None:
    exact = sampled(GroupedSampler())
    for same in (sampled(EngineSampler(0.0)), sampled(EngineSampler(0.0, bias=5.0))):
        assert all(a.token_ids.equal(b.token_ids) for a, b in zip(exact, same, strict=True))
    engine = EngineSampler(1.0)
    noisy = sampled(engine)
    assert not any(a.token_ids.equal(b.token_ids) for a, b in zip(exact, noisy, strict=True))  # others are drawn
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1))
    gaps, divergences, squares = [], [], []
    for rollout in noisy:
        start = len(rollout.prompt.token_ids)
        with torch.no_grad():
            tokens = torch.cat([torch.tensor(rollout.prompt.token_ids), rollout.token_ids])[None]
            logits = policy.model(tokens).logits[0, start - 1 : -1]
        plain = logits.log_softmax(-1)
        assert rollout.logprobs is not None
        gaps.append(rollout.logprobs - plain.gather(-1, rollout.token_ids[:, None]).squeeze(-1))
        another = engine_logits(logits, 1.0, 0.25, base=7).log_softmax(-1)  # an engine with the same kind of errors
        divergences.append((another.exp() * (another - plain)).sum(-1))
        squares.append((another.exp() * (another - plain).square()).sum(-1))
    gap, mean = torch.cat(gaps), float(torch.cat(divergences).mean())
    deviation = float(torch.cat(squares).mean() - mean**2) ** 0.5
    assert len(gap) == 800
    assert (
        0.4 < mean < 0.8
    )  # the divergence of an engine from the policy; drawn by the policy, the gap would be negative
    # five standard errors of 800 tokens: which tokens are drawn depends on how a processor rounds
    assert float(gap.mean()) == pytest.approx(mean, abs=5 * deviation / 800**0.5)
    assert float(gap.std()) == pytest.approx(deviation, abs=0.2)
    greedy = [sampled(source, temperature=0.0) for source in (GroupedSampler(), EngineSampler(1.0))]
    assert all(a.token_ids.equal(b.token_ids) for a, b in zip(*greedy, strict=True))
    assert type(engine.local()) is GroupedSampler
