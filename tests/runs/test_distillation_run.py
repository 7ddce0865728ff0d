"""On-policy distillation in whole runs: alone, beside a reward, exact, from a server, on two ranks, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.old_policy.teacher import LocalTeacher
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from tests.rollouts.toy_server import ToyServer
from tests.runs import runs
from tests.runs.ranks import fit_on_ranks, two_ranks
from tests.runs.test_invariance import SGD
from tests.runs.test_positive_run import averaged_gradient, rollouts

ALONE = ["--data.rewards=null", "--data.val=null", "--trainer.num_sanity_val_steps=0", "--model.cold_start=null"]
"""Nothing judges an answer."""
SLOW = [*SGD, "--model.optimizer.lr=0.05", "--trainer.max_epochs=2", "--data.max_tokens_per_micro_batch=60"]
"""Two ranks add up in another order: with gradients of norm 20, a step of 0.5 would show the rounding of that."""
FOLLOW = "--model.objective.distill_coef=1"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same model, with opinions: what it prefers, it prefers clearly."""
    folder = tmp_path_factory.mktemp("teacher")
    policy = load_policy(ModelSettings(seed=7))
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(3.0)
    policy.save_pretrained(folder)
    return folder


def follow(teacher: Path | str, *more: str) -> list[str]:
    return [*ALONE, FOLLOW, f"--model.teacher={teacher}", *more]


LONG = pytest.mark.long
EXACT, ADAPTERS = ("--model.objective.distill_exact=true",), ("--model.lora={r: 4}",)


@pytest.mark.thorough
@pytest.mark.parametrize("more", [(), pytest.param(EXACT, marks=LONG), pytest.param(ADAPTERS, marks=LONG)], ids=str)
def test_without_any_reward_the_policy_comes_closer_to_its_teacher(
    tmp_path: Path, teacher: Path, more: tuple[str, ...]
) -> None:
    large = ["--data.prompts_per_rollout=32", "--data.minibatches_per_rollout=4", "--trainer.max_epochs=5"]
    run = runs.fit(tmp_path, *follow(teacher, *large, "--model.optimizer.init_args.lr=0.003", *more))
    kl = [value for _, value in runs.scalars(run)["distill/kl"]]
    assert kl[0] > 0.3
    assert sum(kl[-4:]) / 4 < 0.75 * kl[0]
    assert {value for _, value in runs.scalars(run)["reward/mean"]} == {0.0}
    assert "alarms" not in runs.summary(run) or not runs.summary(run)["alarms"]
    assert ("distill/kl_k3" in runs.scalars(run)) == (not any("exact" in option for option in more))
    assert not [name for name in runs.checkpoint(run)["state_dict"] if "teacher" in name]


@pytest.mark.thorough
def test_the_gradient_does_not_depend_on_the_micro_batches_nor_does_the_exact_one(
    tmp_path: Path, teacher: Path
) -> None:
    for exact in ("false", "true"):
        options = follow(teacher, *SGD, "--trainer.max_epochs=1", f"--model.objective.distill_exact={exact}")
        whole, cut = (
            runs.fit(tmp_path / exact / str(budget), *options, f"--data.max_tokens_per_micro_batch={budget}")
            for budget in (4096, 40)
        )
        assert min(v for _, v in runs.scalars(cut)["data/micro_batches"]) >= 6
        assert runs.largest_difference(runs.weights(whole), runs.weights(cut)) < 5e-6
        assert [v for _, v in runs.scalars(whole)["distill/kl"]] == pytest.approx(
            [v for _, v in runs.scalars(cut)["distill/kl"]], abs=1e-5
        )


@LONG
def test_a_layout_with_padding_gives_the_same_update(tmp_path: Path, teacher: Path) -> None:
    options = follow(teacher, *SGD, "--trainer.max_epochs=1")
    packed, padded = (
        runs.fit(tmp_path / layout, *options, f"--model.layout={layout}") for layout in ("packed", "padded")
    )
    assert runs.largest_difference(runs.weights(packed), runs.weights(padded)) < 5e-6


def exact_gradient(rank: int, rows: list[list[int]]) -> dict[str, list[float]]:
    policy, own, every = load_policy(ModelSettings()), load_policy(ModelSettings(seed=7)), rollouts()
    policy.train()
    parts = [make_micro_batch([every[i]]) for i in rows[rank]]
    teacher = LocalTeacher(own, exact=True)
    terms = LossTerms(policy, CachedLogProbs(), GSPO(distill_coef=1.0, distill_exact=True), 1.0, teacher=teacher)
    return averaged_gradient(parts, terms, len(rows))


@pytest.mark.thorough
def test_the_exact_gradient_of_two_ranks_is_that_of_one() -> None:
    """Of which the first holds more responses, and so more micro-batches."""
    alone = exact_gradient(0, [[0, 1, 2, 3, 4, 5]])
    assert max(abs(x) for values in alone.values() for x in values) > 1e-3
    for together in two_ranks(exact_gradient, [[0, 1, 2, 3], [4, 5]]):
        assert together.keys() == alone.keys()
        for name, values in alone.items():
            assert together[name] == pytest.approx(values, abs=2e-6), name


@LONG
@pytest.mark.parametrize("exact", ["true", "false"])
def test_two_ranks_do_the_update_of_one(tmp_path: Path, teacher: Path, exact: str) -> None:
    options = follow(teacher, *SLOW, f"--model.objective.distill_exact={exact}")
    alone = runs.fit(tmp_path / "one", *options)
    together = fit_on_ranks(tmp_path / "two", *options, "--trainer.strategy=ddp")
    assert runs.largest_difference(runs.weights(alone), runs.weights(together)) < 2e-6
    for tag in ("distill/kl", "loss", *(("distill/kl_k3", "distill/capped") if exact == "false" else ())):
        one, two = (dict(runs.scalars(run)[tag]) for run in (alone, together))
        assert one == pytest.approx(two, abs=1e-5), tag


@LONG
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_shards_do_the_update_of_one(tmp_path: Path, teacher: Path, strategy: str) -> None:
    """The teacher is sharded like the policy."""
    options = follow(teacher, *SLOW, "--model.optimizer.momentum=0.9")
    alone = runs.fit(tmp_path / "one", *options)
    together = fit_on_ranks(tmp_path / "two", *options, overlay=strategy)
    assert runs.largest_difference(runs.weights(alone), runs.weights(together)) < 2e-6


@pytest.mark.thorough
@pytest.mark.parametrize("exact", ["false", pytest.param("true", marks=LONG)])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, teacher: Path, exact: str) -> None:
    """In the middle of a rollout batch: what the teacher said of the rest of it is in the checkpoint."""
    options = [
        *runs.UNTAUGHT, FOLLOW, f"--model.teacher={teacher}", f"--model.objective.distill_exact={exact}",
        "--trainer.max_epochs=2",
    ]  # fmt: skip
    undisturbed = runs.fit(tmp_path / "a", *options)
    with runs.interrupted(lambda loader: loader.iteration * 2 + loader.trained == 3):
        run = runs.fit(tmp_path / "b", *options, code=130)
        assert runs.checkpoint(run)["global_step"] == 3
    runs.fit(tmp_path / "b", *options, "--ckpt_path=last")
    assert runs.largest_difference(runs.weights(run), runs.weights(undisturbed)) == 0.0
    assert runs.scalars(run) == runs.scalars(undisturbed)


@pytest.mark.thorough
def test_a_server_teaches_like_the_same_model_here(tmp_path: Path, teacher: Path) -> None:
    here = runs.fit(tmp_path / "here", *follow(teacher, *SGD))
    with ToyServer() as toy:
        toy.load(str(teacher))
        served = runs.fit(tmp_path / "served", *follow(toy.url, *SGD))
        assert toy.asked == 1 + 2 * 32
    assert runs.largest_difference(runs.weights(here), runs.weights(served)) < 1e-5
    assert runs.largest_difference(runs.weights(here), runs.untrained()) > 1e-3


@pytest.mark.thorough
def test_a_teacher_that_is_the_policy_moves_nothing_in_the_first_update(tmp_path: Path) -> None:
    policy = load_policy(ModelSettings(seed=1))  # seed_everything of the quickstart
    policy.save_pretrained(tmp_path / "same")
    run = runs.fit(tmp_path, *follow(tmp_path / "same", *SGD, "--trainer.max_epochs=1"))
    assert runs.scalars(run)["distill/kl"][0][1] == pytest.approx(0.0, abs=1e-6)
    assert runs.scalars(run)["optim/gradient_norm"][0][1] < 1e-4


@pytest.mark.thorough
def test_a_dump_is_replayed_with_what_the_teacher_said(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gspo_lightning.training.module import GSPOModule

    original = GSPOModule.on_before_optimizer_step

    def dump(self: GSPOModule, optimizer: torch.optim.Optimizer) -> None:
        original(self, optimizer)
        self.dump_update({"loss": self._update.values["loss"]})

    monkeypatch.setattr(GSPOModule, "on_before_optimizer_step", dump)
    for exact, code in (("false", 0), ("true", 2)):
        root = tmp_path / exact
        run = runs.fit(root, *follow(teacher, "--trainer.max_epochs=1", f"--model.objective.distill_exact={exact}"))
        capsys.readouterr()
        assert main(["replay", str(run / "dumps" / "update-00000001.pt")]) == code
        shown = capsys.readouterr()
        if exact == "true":
            assert "distill_exact" in shown.err
        else:
            first, *_, last = (line.split("loss ")[-1].split(",")[0] for line in shown.out.strip().splitlines())
            assert float(last) == pytest.approx(float(first), rel=1e-4)


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "no teacher": ([FOLLOW], ["model.teacher: is not set, but the objective's distill_coef is 1"]),
    "nothing follows": (["--model.teacher=tiny-qwen3"], ["model.teacher: is set, but", "distill_coef is 0"]),
    "no reward, no teacher": (
        ["--data.rewards=null"], ["data.rewards: is empty, and there is no teacher either", "model.teacher"],
    ),
    "no reward, but held-out prompts": (
        [FOLLOW, "--model.teacher=tiny-qwen3", "--data.rewards=null"],
        ["data.rewards: is empty, so nothing judges the answers to held-out prompts", "data.val: null"],
    ),
    "no reward, but resampling": (
        [*ALONE, FOLLOW, "--model.teacher=tiny-qwen3", "--data.resample_dead_groups=4"],
        ["data.resample_dead_groups: needs data.rewards"],
    ),
    "no such folder": ([FOLLOW, "--model.teacher=/no/such/teacher"], ["model.teacher: the folder '/no/such/teacher'"]),
    "a server at another temperature": (
        [FOLLOW, "--model.teacher=http://127.0.0.1:9", "--data.temperature=0.7"],
        ["data.temperature: is 0.7, but a server's log-probabilities of a prompt are those of temperature 1"],
    ),
    "a server, exact": (
        [FOLLOW, "--model.teacher=http://127.0.0.1:9", "--model.objective.distill_exact=true"],
        ["model.objective.distill_exact: needs the teacher's whole distribution"],
    ),
    **{
        f"{name} shards, exact": (
            [
                FOLLOW, "--model.teacher=tiny-qwen3", "--model.objective.distill_exact=true",
                f"--config={runs.ROOT / 'configs' / name}.yaml", "--trainer.accelerator=cpu", "--trainer.devices=1",
            ],
            ["model.objective.distill_exact: needs the teacher's whole output head", strategy, "use ddp"],
        )
        for name, strategy in (("fsdp", "FSDP"), ("fsdp2", "FSDP2Strategy"))
    },
    "a dtype for a server": (
        [FOLLOW, "--model.teacher.name_or_path=http://127.0.0.1:9", "--model.teacher.dtype=float32"],
        ["model.teacher.dtype: means nothing to a server"],
    ),
    "a password in the address": (
        [FOLLOW, "--model.teacher=http://me:secret@127.0.0.1:9"], ["model.teacher: ", "holds a password"],
    ),
    "nobody there": (
        [FOLLOW, "--model.teacher=http://127.0.0.1:9"],
        ["model.teacher: http://127.0.0.1:9 cannot be the teacher"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, complaints = MISTAKES[name]
    runs.fit(tmp_path, "--model.cold_start=null", *options, code=2)
    shown = capsys.readouterr().err
    for complaint in complaints:
        assert complaint in shown
    assert "Traceback" not in shown


def test_another_vocabulary_is_refused_before_anything_is_written(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other"
    load_policy(ModelSettings(str(teacher))).save_pretrained(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
    file.write_text(json.dumps(content))
    runs.fit(tmp_path / "root", *follow(folder), code=2)
    assert "model.teacher: has another vocabulary than the policy: token" in capsys.readouterr().err
    assert not (tmp_path / "root" / "quickstart").exists()


@LONG
def test_settings_of_a_teacher_in_yaml_are_those_of_its_name(tmp_path: Path, teacher: Path) -> None:
    by_name = runs.fit(tmp_path / "name", *follow(teacher, "--trainer.max_epochs=1"))
    written = f"{{name_or_path: {teacher}, dtype: float32}}"
    by_settings = runs.fit(tmp_path / "settings", *follow(written, "--trainer.max_epochs=1"))
    assert runs.largest_difference(runs.weights(by_name), runs.weights(by_settings)) == 0.0
