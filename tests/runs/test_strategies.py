"""FSDP and FSDP2 on two gloo processes: the updates of one process, exact resume, exports that load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from bitsandbytes.optim import AdamW8bit
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from gspo_lightning.cli import main
from gspo_lightning.commands.export import sharded_weights
from gspo_lightning.core.distributed import local
from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.update.update import Update
from gspo_lightning.policy.adapters.lora import LoRA, adapters_off
from gspo_lightning.policy.averaging import holds_average
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.strategies.checks import check_optimizer
from gspo_lightning.resume import damage
from gspo_lightning.training.callbacks import AveragedWeights
from gspo_lightning.training.module import GSPOModule
from tests.rollouts.toy_server import ToyServer
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks
from tests.runs.test_invariance import SGD

IN_PIECES = Path(__file__).with_name("in_pieces.py")
OPTIONS = [
    *runs.UNTAUGHT, f"--plugins+={IN_PIECES}",
    "--trainer.max_epochs=2", "--data.max_tokens_per_micro_batch=60", "--data.evaluation.limit=5",
    "--data.prompts_per_rollout=4", *SGD, "--model.optimizer.momentum=0.9",
    "--trainer.check_val_every_n_epoch=1", "--trainer.accelerator=cpu",
]  # fmt: skip
"""Uneven micro-batches, and an odd number of held-out prompts."""


@dataclass
class Case:
    strategy: str
    options: list[str] = field(default_factory=list)
    of_strategy: dict[str, str] = field(default_factory=dict)
    """Means nothing to one process."""

    def run(self, root: Path, *more: str, ranks: int = 2) -> Path:
        of_strategy = [f"--trainer.strategy.init_args.{name}={value}" for name, value in self.of_strategy.items()]
        return fit_on_ranks(root, *OPTIONS, *self.options, *of_strategy, *more, overlay=self.strategy, ranks=ranks)


DENSE = ["--model.old_policy=ResidentSnapshot"]
MOE = [
    "--model.name_or_path=tiny-qwen3-moe", "--model.gradient_checkpointing=true", "--model.router_aux_loss_coef=0.01",
]  # fmt: skip
ADAPTERS = [*DENSE, "--model.lora={r: 4}"]
OFFLOADED = ["--model.old_policy=OffloadedSnapshot", "--model.old_policy.refresh_every=2"]
BY_NORM = ["--trainer.gradient_clip_algorithm=norm", "--trainer.gradient_clip_val=0.1"]
BY_VALUE = ["--trainer.gradient_clip_algorithm=value", "--trainer.gradient_clip_val=0.001"]
CASES = {"fsdp": Case("fsdp", [*DENSE, *BY_NORM]), "fsdp2": Case("fsdp2", MOE)}
REPLAY = {
    "ddp R2": Case("ddp", [*MOE, "--model.objective=GRPO", "--model.routing_replay=R2"]),
    "fsdp2 R3": Case("fsdp2", [*MOE, "--model.objective=GRPO", "--model.routing_replay=R3"]),
}
LONG = {
    "fsdp MoE": Case("fsdp", MOE),
    "fsdp2 resident": Case("fsdp2", DENSE),
    "fsdp2 lockstep": Case("fsdp2", of_strategy={"rollouts": "lockstep"}),
    "fsdp clipped by value": Case("fsdp", [*DENSE, *BY_VALUE]),
    "fsdp2 clipped by value": Case("fsdp2", [*DENSE, *BY_VALUE]),
    "fsdp2 clipped by norm": Case("fsdp2", [*DENSE, *BY_NORM]),
    "ddp MoE": Case("ddp", MOE),
    "fsdp2 without optimizer state": Case("fsdp2", ["--model.optimizer.momentum=0"]),
    "fsdp without optimizer state": Case("fsdp", ["--model.optimizer.momentum=0"]),
    "fsdp offloaded": Case("fsdp", OFFLOADED),
    "fsdp2 offloaded": Case("fsdp2", OFFLOADED),
    "fsdp offloaded weights": Case("fsdp", of_strategy={"cpu_offload": "true"}),
    "ddp average": Case("ddp", ["--trainer.callbacks=[{class_path: EMAWeightAveraging, init_args: {decay: 0.5}}]"]),
    "fsdp adapters": Case("fsdp", ADAPTERS),
    "fsdp2 adapters": Case("fsdp2", ADAPTERS),
}


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return sharded_weights(checkpoint) if checkpoint.is_dir() else runs.weights(checkpoint.parents[1])


def assert_same_run(case: Case, two: Path, root: Path) -> None:
    one = runs.fit(root, *OPTIONS, *case.options)
    # sums over ranks differ in their last bits, and the optimizer divides small gradients by their size
    assert runs.largest_difference(weights(two / "checkpoints" / "last.ckpt"), runs.weights(one)) < 2e-6
    alone, together = runs.scalars(one), runs.scalars(two)
    # what is measured between micro-batches, or on a rank's first one alone, depends on what they hold
    cut = {"data/micro_batches", "moe/changed_over_iteration", "update/gradient_noise"}
    assert alone.keys() - cut == together.keys() - cut
    for tag in alone.keys() - cut:
        for (_, a), (_, b) in zip(alone[tag], together[tag], strict=True):
            assert a == pytest.approx(b, abs=2e-5, rel=1e-6), tag  # a norm of 31 has 2e-6 a digit


def assert_resumes(case: Case, whole: Path, root: Path, ranks: int = 2) -> float:
    """Goes on from the middle; returns the largest difference to the run that was not interrupted."""
    run = root / "quickstart" / "version_0"
    shutil.copytree(whole, run, symlinks=True)
    for file in (run / "checkpoints").glob("step-00000004.ckpt*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    case.run(root, "--ckpt_path=last", ranks=ranks)
    assert "step-00000002.ckpt" in root.with_suffix(".log").read_text()
    a, b = (weights(r / "checkpoints" / "step-00000004.ckpt") for r in (whole, run))
    return runs.largest_difference(a, b)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a case -> its run folder."""
    return {name: case.run(tmp_path_factory.mktemp(name) / "two") for name, case in CASES.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_do_the_updates_of_one(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    assert_same_run(CASES[name], made[name], tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_sharded_run_goes_on_bit_for_bit(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    assert assert_resumes(CASES[name], made[name], tmp_path / "resumed") == 0.0


@pytest.mark.thorough
def test_fsdp2_goes_on_with_another_number_of_ranks(made: dict[str, Path], tmp_path: Path) -> None:
    assert assert_resumes(CASES["fsdp2"], made["fsdp2"], tmp_path / "alone", ranks=1) < 1e-6


@pytest.mark.thorough("fsdp")
@pytest.mark.parametrize("name", CASES)
def test_a_sharded_checkpoint_exports_to_identical_logits(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = made[name] / "checkpoints" / "last.ckpt"
    assert main(["export", str(checkpoint), str(tmp_path / "model")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    state = {f"policy.model.{k}": v for k, v in model.state_dict().items()}
    assert runs.largest_difference(state, sharded_weights(checkpoint)) == 0.0


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_shard_is_found(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(made[name] / "checkpoints", folder, symlinks=True)
    checkpoint = folder / "step-00000004.ckpt"
    assert damage(checkpoint) is None
    shard = checkpoint / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert "checksum" in str(damage(checkpoint))


@pytest.fixture
def rank_of_two() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("rank_of_two")
def test_optimizers_that_shards_cannot_bear_are_refused() -> None:
    fsdp = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    fsdp2 = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
    for policy in (fsdp, fsdp2):
        with pytest.raises(UserError, match="AdamW8bit of bitsandbytes cannot step"):
            check_optimizer(AdamW8bit(policy.parameters()), policy)
    for policy in (fsdp, fsdp2, nn.Linear(4, 4)):
        check_optimizer(torch.optim.SGD(policy.parameters(), lr=0.1), policy)


@pytest.mark.usefixtures("rank_of_two")
def test_an_average_of_shards_is_refused() -> None:
    module = GSPOModule()
    module.policy = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))  # type: ignore[assignment]
    with pytest.raises(UserError, match="EMAWeightAveraging needs whole weights"):
        AveragedWeights(EMAWeightAveraging()).on_fit_start(Trainer(logger=False), module)
    with pytest.raises(UserError, match="a run that averages its weights"):  # not of those of now
        holds_average({"current_model_state": {}, "callbacks": {}})


@pytest.mark.usefixtures("rank_of_two")
@pytest.mark.parametrize("algorithm", [None, *GradClipAlgorithmType])
@pytest.mark.parametrize("sharded", ["fsdp", "fsdp2"])
def test_shards_are_clipped_by_norm_and_by_value(sharded: str, algorithm: GradClipAlgorithmType | None) -> None:
    layer = nn.Linear(4, 4, bias=False)
    if sharded == "fsdp":
        layer = FullyShardedDataParallel(layer, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    (weight,) = layer.parameters()
    gradient = torch.zeros_like(weight)
    weight.grad, mine = gradient, local(gradient)
    mine.view(-1)[:4].copy_(torch.tensor([3.0, -4.0, 0.5, 0.0]))
    module = GSPOModule()
    module.policy = layer  # type: ignore[assignment]
    module._update = Update(Mock(), False, 0.0, {"optim/gradient_norm": 10.0})  # the other rank has the rest
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    module.configure_gradient_clipping(optimizer, gradient_clip_val=2.0, gradient_clip_algorithm=algorithm)
    clipped = [2.0, -2.0, 0.5, 0.0] if algorithm == "value" else [0.6, -0.8, 0.1, 0.0]
    assert torch.allclose(mine.view(-1)[:4], torch.tensor(clipped), atol=1e-5)
    module.configure_gradient_clipping(optimizer, gradient_clip_val=None, gradient_clip_algorithm=algorithm)
    assert torch.allclose(mine.view(-1)[:4], torch.tensor(clipped), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_strategies_train_resume_and_export_other_models_and_snapshots(name: str, tmp_path: Path) -> None:
    case = LONG[name]
    two = case.run(tmp_path / "two")
    assert_same_run(case, two, tmp_path / "one")
    assert assert_resumes(case, two, tmp_path / "resumed") == 0.0
    if "adapters" in name:
        assert_exports_merged(two / "checkpoints" / "last.ckpt", tmp_path / "model")


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_a_server_is_given_the_weights_by_the_first_of_two_ranks(strategy: str, tmp_path: Path) -> None:
    with ToyServer() as server:
        source = {"class_path": "VLLMServer", "init_args": {"urls": [server.url], "exact_seeds": True}}
        case = Case(strategy, [f"--data.rollouts={json.dumps(source)}"])
        two = case.run(tmp_path / "two")
        assert server.loads == 3  # for the evaluation before the first update, and after each iteration
        assert_same_run(case, two, tmp_path / "one")


@pytest.mark.long
@pytest.mark.parametrize("name", REPLAY)
def test_routing_replay_on_two_ranks_is_that_of_one(name: str, tmp_path: Path) -> None:
    case = REPLAY[name]
    two = case.run(tmp_path / "two")
    assert_same_run(case, two, tmp_path / "one")
    tags = {tag: dict(values) for tag, values in runs.scalars(two).items()}
    for update in (1, 3):  # the first of an iteration: nothing has changed since its rollouts
        assert tags["ratio/mean"][update] == 1.0
        assert tags["ratio/std"][update] == 0.0
    assert tags["moe/changed_choices"][2] > 0  # there was something to replay
    free = [option for option in case.options if "replay" not in option]
    assert runs.scalars(runs.fit(tmp_path / "free", *OPTIONS, *free))["ratio/std"][1][1] != tags["ratio/std"][2]


def assert_exports_merged(checkpoint: Path, folder: Path) -> None:
    adapters = sharded_weights(checkpoint)
    assert {".lora_" in key for key in adapters} == {True}
    assert main(["export", str(checkpoint), str(folder)]) == 0
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1, lora=LoRA(r=4)))
    policy.load_state_dict({key.removeprefix("policy."): value for key, value in adapters.items()}, strict=False)
    ids = torch.arange(3, 19).view(2, 8)
    with torch.no_grad():
        expected, found = policy.model(ids).logits, AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        with adapters_off(policy.model):
            assert not torch.allclose(policy.model(ids).logits, expected, atol=1e-4)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.thorough
def test_muon_sees_whole_matrices_of_shards(tmp_path: Path) -> None:
    """Its iteration rounds to bfloat16, 3 % of an update here; made of shards one by one, updates would be others."""
    options = [o for o in OPTIONS if not o.startswith("--model.optimizer")] + [*ADAPTERS, "--trainer.max_epochs=1"]
    options += ["--model.optimizer=Muon", "--model.optimizer.lr=0.01"]  # it takes matrices only: adapters are
    ranks = fit_on_ranks(tmp_path / "two", *options, overlay="fsdp2", ranks=2)
    two, one = weights(ranks / "checkpoints" / "last.ckpt"), runs.weights(runs.fit(tmp_path / "one", *options))
    second = [name for name in one if "lora_B" in name]  # they start at 0: their norm is that of the updates
    assert len(second) > 10
    for name in second:
        assert (two[name] - one[name]).norm() < 0.1 * one[name].norm()


@pytest.mark.thorough
def test_two_replicas_of_two_shards_are_one_process_and_resume_on_another_mesh(tmp_path: Path) -> None:
    """HSDP: norms count every shard once, whoever has copies of it."""
    case = Case("hsdp", [*DENSE, *BY_NORM, "--data.prompts_per_rollout=8"])
    four = case.run(tmp_path / "four", ranks=4)
    assert_same_run(case, four, tmp_path / "one")
    whole = Case("fsdp2", case.options)
    assert assert_resumes(whole, four, tmp_path / "resumed", ranks=2) < 1e-6


def test_ranks_that_cannot_be_cut_into_replicas_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = f"--config={runs.ROOT / 'configs' / 'hsdp.yaml'}"
    runs.fit(tmp_path, overlay, "--trainer.accelerator=cpu", "--trainer.devices=1", code=2)
    said = capsys.readouterr().err
    assert "trainer.strategy.replicas: is 2, but 1 ranks cannot be cut into so many equal groups" in said


@pytest.mark.thorough
def test_shards_of_two_ranks_are_those_of_four_and_of_one(tmp_path: Path) -> None:
    """Bit for bit: a rate of 0 leaves the weights that were loaded."""
    still = ["--model.optimizer.lr=0", "--allow_changed_config=true", "--data.prompts_per_rollout=8"]
    case = Case("fsdp2", ["--data.prompts_per_rollout=8"])
    run = case.run(tmp_path / "run")
    before = weights(run / "checkpoints" / "last.ckpt")
    for epochs, ranks in ((3, 4), (4, 1)):
        case.run(tmp_path / "run", *still, "--ckpt_path=last", f"--trainer.max_epochs={epochs}", ranks=ranks)
        assert (run / "checkpoints" / "last.ckpt").resolve().name == f"step-{2 * epochs:08d}.ckpt"
        assert runs.largest_difference(before, weights(run / "checkpoints" / "last.ckpt")) == 0.0
