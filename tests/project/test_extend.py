"""docs/extend.md: every plug-in of the page trains the quickstart, and does what the page says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.core.registry import components, import_plugins
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler
from tests import ROOT
from tests.runs.runs import share_cold_start
from tests.support.pages import blocks

Folder = Callable[[str], Path]
SMALL = ("prompts_per_rollout=8", "group_size=4", "evaluation.limit=8", "minibatches_per_rollout=2")
PLUG_INS = ("quadratic", "median", "plain_loop", "sums")


def fit(folder: Path, name: str, root: Path, *arguments: str) -> Path:
    """The folder of a short run of the quickstart with a page's YAML."""
    small = [f"--data.{word}" for word in SMALL]
    configs = [f"--config={folder / 'configs' / 'quickstart.yaml'}", f"--config={folder / f'{name}.yaml'}"]
    assert main(["fit", *configs, *small, f"--trainer.default_root_dir={root}", *arguments]) == 0
    return root / "quickstart" / "version_0"


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLUG_INS)
def test_the_plug_in_trains(
    name: str, page_folder: Folder, cold_starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = page_folder("extend")
    monkeypatch.chdir(folder)
    share_cold_start(cold_starts, tmp_path)
    run = fit(folder, name, tmp_path, "--trainer.max_epochs=2", "--data.max_response_tokens=12")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] == 4


@pytest.mark.thorough
def test_a_run_ends_when_it_is_solved(
    page_folder: Folder, cold_starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = page_folder("extend")
    monkeypatch.chdir(folder)
    share_cold_start(cold_starts, tmp_path)
    run = fit(folder, "solved", tmp_path, "--trainer.max_epochs=5")
    assert json.loads((run / "summary.json").read_text())["updates"] == 2  # one iteration: its reward is above 0.2


def test_the_quadratic_objective_by_hand(page_folder: Folder) -> None:
    import_plugins([page_folder("extend") / "plugins" / "quadratic.py"])
    old = torch.zeros(2, 2)
    new = torch.tensor([[0.1, 0.3], [0.2, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    out = components("objectives")["Quadratic"](beta=10.0)(new, old, torch.tensor([1.0, -2.0]), mask)
    s = torch.tensor(0.2).exp()
    assert float(out.loss.detach()) == pytest.approx(float((-s + 2 * s) / 2 + 5 * 0.04), abs=1e-6)
    out.loss.backward()
    assert new.grad is not None
    by_hand = [[float(-s + 2) / 4] * 2, [float(2 * s + 2) / 2, 0.0]]
    torch.testing.assert_close(new.grad, torch.tensor(by_hand), rtol=1e-5, atol=1e-6)


def test_medians_by_hand(page_folder: Folder) -> None:
    import_plugins([page_folder("extend") / "plugins" / "median.py"])
    found = components("advantages")["MedianCentred"]()(
        torch.tensor([0.0, 1.0, 9.0, 2.0, 2.0]), torch.tensor([7, 7, 7, 3, 3])
    )
    assert found.tolist() == [-1.0, 0.0, 8.0, 0.0, 0.0]


def test_the_plain_loop_gives_the_tokens_of_the_built_in_sampler(
    page_folder: Folder, policy: Policy, prompts: list[Prompt]
) -> None:
    import_plugins([page_folder("extend") / "plugins" / "plain_loop.py"])
    sampling = SamplingParams(max_response_tokens=8, stop_token_ids=(policy.tokenizer.eos_token_id,))
    rows = {}
    for source in (components("rollouts")["PlainLoop"](), GroupedSampler()):
        found = source.generate(policy, prompts, group_size=3, sampling=sampling, draws=Draws(5), version=2)
        rows[type(source).__name__] = [r for group in found for r in group]
    for ours, theirs in zip(rows["PlainLoop"], rows["GroupedSampler"], strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert (ours.finish_reason, ours.text, ours.policy_version) == (theirs.finish_reason, theirs.text, 2)
        torch.testing.assert_close(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


def test_the_prompt_set_by_hand(page_folder: Folder) -> None:
    import_plugins([page_folder("extend") / "plugins" / "sums.py"])
    made = components("prompts")["Sums"](size=100)
    assert made.records()[38] == {"prompt": "3+8:", "answer": "1"}
    assert made.demonstrations()[38] == ("3+8:", "#1")


def test_every_plug_in_of_the_page_is_tried() -> None:
    shown = {Path(name).stem for name, _, _ in blocks(ROOT / "docs" / "extend.md") if name.endswith(".py")}
    assert shown == {*PLUG_INS, "solved"}
