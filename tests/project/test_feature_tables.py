"""Tables of features are those of the registry, the configs and the types; none calls missing what is there."""

from __future__ import annotations

import re
import tomllib
from typing import get_args, get_type_hints

import pytest
import yaml

from gspo_lightning.core.registry import components
from gspo_lightning.policy.vision.families import SAID
from gspo_lightning.training.module import GSPOModule
from tests import ROOT

OVERLAYS = {"ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP2", "hsdp": "HSDP", "cp": "context", "ep": "expert"}
"""Config that names a strategy -> what a table of features calls it."""


def built_in(kind: str) -> list[str]:
    """Names of this package's components: other tests of the process define their own."""
    return [name for name, made in components(kind).items() if made.__module__.startswith("gspo_lightning.")]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def compared(row: str) -> str:
    """What the comparison of the README says of this package in a row."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \| (.*?) \|", page("README.md"), flags=re.MULTILINE)
    return str(found)


def firsts(name: str, head: str) -> list[str]:
    """First words in backticks of each row of the table that begins with ``head``."""
    table = page(name).partition(f"\n{head}")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)


def test_each_config_that_names_a_strategy_is_in_the_tables_of_strategies() -> None:
    files = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / "configs").glob("*.yaml")}
    assert {name for name, values in files.items() if "strategy" in (values or {}).get("trainer", {})} == set(OVERLAYS)
    words = set(re.findall(r"\w+", compared("parallel training")))
    assert set(OVERLAYS.values()) <= words
    chosen = re.findall(r"\| `configs/(\w+)\.yaml` \|", page("docs/distributed.md"))
    assert sorted(chosen) == sorted(OVERLAYS)


def test_nothing_that_is_there_is_called_not_implemented() -> None:
    (missing,) = re.findall(r"^Not implemented: (.*?)\n\n", page("README.md"), flags=re.MULTILINE | re.DOTALL)
    kinds = ("objectives", "advantages", "rewards", "rollouts", "environments", "agents", "curricula")
    there = {*OVERLAYS.values(), *(name for kind in kinds for name in built_in(kind))}
    assert not there & set(re.findall(r"\w+", missing))


def test_the_page_of_rollouts_has_every_source() -> None:
    apart = {"EnvironmentRollouts": "docs/environments.md", "AgentRollouts": "docs/agents.md"}
    assert {*firsts("docs/rollouts.md", "| source | use it"), *apart} == set(built_in("rollouts"))
    assert all(name in page(file) for name, file in apart.items())
    engines = [name for name in built_in("rollouts") if name.startswith("VLLM")]
    assert engines
    assert {"vLLM", "transformers", "sampler"} <= set(re.findall(r"\w+", compared("sampling")))


def test_the_table_of_curricula_has_every_curriculum() -> None:
    assert firsts("docs/mixtures.md", "| curriculum | prompts of an iteration") == sorted(
        built_in("curricula"), key=["Uniform", "DifficultyPools", "TargetRate", "Informative"].index
    )


def test_the_table_of_rewards_has_every_reward_and_each_kind_of_answer_a_registered_one() -> None:
    assert set(firsts("docs/rewards.md", "| name | score |")) - {"StepReward"} == set(built_in("rewards"))
    taken = page("docs/rewards.md").partition("| your answers are | take |")[2].partition("\n\n")[0]
    named = re.findall(r"`([A-Z]\w+)`", taken)
    assert named
    assert set(named) <= set(built_in("rewards"))


def test_every_objective_is_on_the_page_of_papers() -> None:
    (table,) = re.findall(r"^## Objectives\n(.*?)^## ", page("docs/papers.md"), flags=re.MULTILINE | re.DOTALL)
    ours = {"MultiScale", "Segment"}  # experimental, of no paper: the lab's record has them
    named = set(re.findall(r"`(?:model\.objective: )?(\w+)`", table))
    assert named >= set(built_in("objectives")) - ours
    assert all(f"| {name} |" in page("experiments/objective_family.md") for name in built_in("objectives"))


@pytest.mark.parametrize("name", ["README.md", "docs/llms.txt"])
def test_objectives_of_a_first_page_are_registered(name: str) -> None:
    (listed,) = re.findall(r"relatives: (.*?)(?: \.\.\.|, and more)", " ".join(page(name).replace("\n>", "\n").split()))
    names = {"PPO with a critic": "PPO", "Dr. GRPO": "DrGRPO"}
    assert {names.get(word, word) for word in listed.split(", ")} <= set(built_in("objectives"))


def test_replays_and_families_with_pictures_are_those_of_the_package() -> None:
    replays = get_args(get_args(get_type_hints(GSPOModule.__init__)["routing_replay"])[0])
    assert compared("Routing Replay for mixtures of experts") == ", ".join(sorted({*replays} - {"off"}))
    shown = [name.replace("-VL", "") for name in compared("vision-language models").split(", ")]
    assert all(name in SAID for name in shown)
    assert all(any(name.startswith(known) for known in shown) for name in SAID.split(", "))
    assert page("docs/vision.md").splitlines()[2].startswith(" and ".join(SAID.rsplit(", ", 1)))


def test_versions_of_python_are_those_that_are_declared() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    declared = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert f"Python {declared[0]} to {declared[-1]}" in page("README.md")
    assert f"Python {', '.join(declared[:-1])} or {declared[-1]}" in page("README.md")


GPU = re.compile(
    r"nothing (?:has run|ran) on a GPU|run on GPUs \| not yet|no GPU has been used|never (?:been )?run on a GPU", re.I
)


def test_no_page_says_that_no_gpu_was_used() -> None:
    """Eleven minutes on one are in benchmarks/results/h100.json; of what has not run there a page says so by name."""
    assert (ROOT / "benchmarks" / "results" / "h100.json").is_file()
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "docs" / "llms.txt"]
    found = {file.name: GPU.findall(" ".join(file.read_text(encoding="utf-8").split())) for file in files}
    assert {name: words for name, words in found.items() if words} == {}
