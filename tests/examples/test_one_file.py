"""``examples/gspo_in_one_file.py`` is the package in small: the same loss, and on the same rollouts the same losses."""

from __future__ import annotations

import ast
import copy
import importlib.util
import random
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import MiniBatch, Prompt, SamplingParams
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.data.prompts.tasks.chain import _solve
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.packing.deal import deal_rows
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import ExactMatch
from gspo_lightning.rollouts import Draws, GroupedSampler
from gspo_lightning.training.module import GSPOModule
from tests import ROOT
from tests.runs import runs

FILE = ROOT / "examples" / "gspo_in_one_file.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gspo_in_one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def random_rows(seed: int, spread: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, old ones, advantages and a mask with gaps; ``spread`` in nats."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(16, 11, generator=generator, dtype=torch.float64)
    new = old + spread * torch.randn(16, 11, generator=generator, dtype=torch.float64)
    mask = torch.rand(16, 11, generator=generator) < 0.7
    mask[:, 3] = True
    return new, old, torch.randn(16, generator=generator, dtype=torch.float64), mask


@pytest.mark.parametrize("spread", [0.0, 1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_loss_gradient_and_clipping_are_those_of_the_package(example: ModuleType, seed: int, spread: float) -> None:
    new, old, advantages, mask = random_rows(seed, spread)
    mine, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    loss, clipped = example.gspo_loss(mine, old, advantages, mask)
    out = GSPO()(theirs, old, advantages, mask)
    loss.backward()
    out.loss.backward()
    assert float(loss) == pytest.approx(float(out.loss), rel=0, abs=1e-12)
    assert float((mine.grad - theirs.grad).abs().max()) <= 1e-12
    assert torch.equal(clipped, out.clipped)
    assert bool(clipped.any()) == (spread >= 1e-3)


def test_advantages_are_those_of_the_package(example: ModuleType) -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.25, 0.5, 3.0]])
    found = example.group_advantages(rewards)
    wanted = GroupNormalised()(rewards.flatten(), torch.arange(3).repeat_interleave(4)).view(3, 4)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-6)
    assert found[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("ending", ["", "#2", "#3", "#2#2", "#2 ", "#", "##2", "7+5=2;#2"])
def test_reward_is_exact_match(example: ModuleType, ending: str) -> None:
    assert example.reward(ending, "2") == ExactMatch().score(ending, False, "2").reward


def test_task_is_the_chain_task(example: ModuleType) -> None:
    rng = random.Random(0)
    problems = [example.make_problem(rng) for _ in range(50)]
    assert len(set(problems)) > 45
    assert [(prompt, *_solve(prompt)) for prompt, _, _ in problems] == problems
    assert len(ChainTask(size=1).records()[0]["prompt"]) == len(problems[0][0])


def test_only_torch_and_transformers_are_imported() -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch", "transformers"}


def test_padding_does_not_change_what_is_sampled(
    example: ModuleType, policy: Policy, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedily, so that responses can be compared: prompts of different lengths, as the package answers them."""
    with torch.no_grad():
        for parameter in policy.parameters():  # predictions that depend clearly on every earlier token
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    monkeypatch.setattr(torch, "multinomial", lambda probabilities, count: probabilities.argmax(-1, keepdim=True))
    greedy = SamplingParams(12, temperature=0.0, stop_token_ids=policy.eos_token_ids)
    draws = Draws.of(0, Purpose.EVAL_SAMPLING, 0)
    groups = GroupedSampler().generate(policy, prompts, group_size=1, sampling=greedy, draws=draws)
    found = example.sample(policy.model, [list(p.token_ids) for p in prompts], policy.eos_token_ids[0], 12)
    assert found == [group[0].token_ids.tolist() for group in groups]
    assert len({tuple(row) for row in found}) == len(prompts)


def test_responses_end_at_their_first_end_token(
    example: ModuleType, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = iter([[5, 1, 7], [1, 6, 7], [8, 1, 7], [1, 1, 7], [9, 9, 9]])
    monkeypatch.setattr(torch, "multinomial", lambda *_: torch.tensor(next(script)).unsqueeze(1))
    assert example.sample(policy.model, [[4], [4, 5], [6]], 1, 4) == [[5, 1], [1], [7, 7, 7, 7]]


# the quickstart's first rollout batch --------------------------------------------------------------------------------


class Recorder:
    """Takes the first weights and every mini-batch of a ``fit`` out of ``training_step``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[MiniBatch] = []
        self.start: PreTrainedModel | None = None
        original = GSPOModule.training_step

        def training_step(module: GSPOModule, batch: MiniBatch, batch_idx: int) -> Tensor:
            if self.start is None:
                self.start = copy.deepcopy(module.policy.model)
            self.batches.append(batch)
            return original(module, batch, batch_idx)

        monkeypatch.setattr(GSPOModule, "training_step", training_step)


def as_example_batch(example: ModuleType, batch: MiniBatch) -> Any:
    """The rows of a mini-batch of the package as the example holds them."""
    rows, advantages = [], []
    for part in batch.micro_batches:
        for i, ids in enumerate(part.input_ids.tolist()):
            start, count = int(part.prompt_lengths[i]), int(part.response_lengths[i])
            rows.append((ids[:start], ids[start : start + count]))
            advantages.append(float(part.advantages[i]))
    return example.make_batch(rows, advantages)


@pytest.mark.parametrize(("prompts", "group_size", "minibatches"), [(4, 4, 2), (6, 4, 3), (4, 2, 4)])
def test_rows_are_dealt_as_in_the_package(
    example: ModuleType,
    policy: Policy,
    prompts: int,
    group_size: int,
    minibatches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = iter(range(prompts * group_size))
    monkeypatch.setattr(example, "sample", lambda _, texts, *__: [[1 + next(numbers), 0] for _ in texts])
    monkeypatch.setattr(example, "make_batch", lambda rows, *_: SimpleNamespace(rows=[r[1][0] - 1 for r in rows]))
    monkeypatch.setattr(example, "token_logprobs", lambda *_: (None, None))
    monkeypatch.setattr(example.CharacterTokenizer, "decode", lambda *_, **__: "")
    args = Namespace(prompts=prompts, group_size=group_size, minibatches=minibatches, response_tokens=4)
    batches, _, _ = example.roll_out(policy.model, example.CharacterTokenizer(), random.Random(0), args)
    every = [[i * group_size + k for k in range(group_size)] for i in range(prompts)]
    assert [b.rows for b in batches] == deal_rows(every, mini_batches=minibatches, deal="stratified")


@pytest.mark.thorough
def test_losses_on_the_first_rollouts_of_the_quickstart_are_those_of_the_package(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    options = [*runs.UNTAUGHT, "--trainer.max_epochs=1", "--data.val=null", "--data.reward_workers=1"]
    run = runs.fit(tmp_path, *options, small=False)
    logged = runs.scalars(run)
    assert recorder.start is not None
    model, batches = recorder.start.eval(), [as_example_batch(example, b) for b in recorder.batches]
    assert [len(b.advantages) for b in batches] == [64] * 4
    with torch.no_grad():
        for batch in batches:
            batch.old_logprobs, _ = example.token_logprobs(model, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.0)  # as in quickstart.yaml
    found = [example.update(model, optimizer, batch) for batch in batches]
    expected = zip(logged["loss"], logged["clip/sequences"], strict=True)
    for (loss, clipped), ((_, logged_loss), (_, fraction)) in zip(found, expected, strict=True):
        assert loss == pytest.approx(logged_loss, rel=0, abs=1e-6)
        assert clipped == pytest.approx(fraction, abs=1.5 / 64)  # a sequence on the edge may fall to either side
    mean = float(batches[0].advantages.double().mean())
    assert found[0] == (pytest.approx(-mean, abs=1e-6), 0.0)  # all ratios are 1
    assert min(abs(loss) for loss, _ in found[1:]) > 1e-4  # by then the weights have moved
    learnt = {f"policy.model.{name}": value for name, value in model.state_dict().items()}
    assert runs.largest_difference(runs.weights(run), learnt) < 1e-5  # 4 steps of 2e-4


# as a script ---------------------------------------------------------------------------------------------------------

SMALL = ["--iterations=2", "--prompts=4", "--group_size=4", "--minibatches=2", "--response_tokens=12"]


def test_script_runs_from_nothing(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rewards = example.main([*SMALL, "--cold_start_steps=20"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("reward")[0].split() for line in lines] == [["iteration", "0"], ["iteration", "1"]]
    assert [float(line.split("reward ")[1][:5]) for line in lines] == pytest.approx(rewards, abs=6e-4)
    assert all(0 <= float(line.split("clipped ")[1][:4]) <= 1 for line in lines)
    assert example.main([*SMALL, "--cold_start_steps=20"]) == rewards


def test_script_takes_a_folder_in_transformers_format(example: ModuleType, policy: Policy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    assert len(example.main([*SMALL, f"--model={tmp_path}"])) == 2


def test_groups_that_cannot_be_dealt_are_refused(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["--prompts=5", "--minibatches=2"])
    assert "5 prompts cannot be cut into 2 equal mini-batches" in capsys.readouterr().err
