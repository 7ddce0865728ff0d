"""Shared by all tests: one thread, no network, a tiny policy and a few prompts.

Nothing of the package is imported here: pytest-xdist's own process reads this file, too, before it starts the others.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import ROOT
from tests.support.caller import forget_the_caller
from tests.support.cpu_seconds import FILE_VARIABLE, CpuSeconds
from tests.support.leftovers import describe, end_group_and_ranks, threads_left
from tests.support.order import (
    PARTS,
    SEED_VARIABLE,
    in_order,
    mark_slow,
    measured,
    missing_cases,
    of_share,
    parted,
    shuffled,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from gspo_lightning.core.types import Prompt
    from gspo_lightning.policy.policy import Policy

forget_the_caller()
# before torch and huggingface_hub are imported, and for child processes, too
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test never waits for the network
os.environ["OMP_NUM_THREADS"] = "1"  # threads of several processes would wait for each other
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parts", choices=PARTS, help="default without files and folders: suite; with them: all (marker `thorough`)"
    )
    parser.addoption("--share", default="1/1", metavar="K/N", help="every N-th file of the part, from the K-th on")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # or xdist deals the files by their number of tests
    if config.option.parts is None:  # xdist's processes are given the answer
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        config.option.parts = "suite" if whole else "all"
    if os.environ.get(FILE_VARIABLE):
        config.pluginmanager.register(CpuSeconds(config), "cpu_seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    all_cases = not any("::" in argument for argument in config.args) and not config.getoption("lf", False)
    if all_cases and (missing := missing_cases(items)):
        raise pytest.UsageError(f"cases that a marker `thorough` names are not there: {missing}")
    of_part, of_others = parted(items, config.option.parts)
    chosen, of_other_shares = of_share(of_part, config.option.share)
    if others := of_others + of_other_shares:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen
    seed, seconds = os.environ.get(SEED_VARIABLE), measured()
    items[:] = shuffled(items, int(seed)) if seed else in_order(items, seconds)
    mark_slow(items, seconds)
    gc.freeze()  # a million objects of imported modules, which stay: not looked at again and again


@pytest.fixture(autouse=True)
def random_numbers_of_its_own() -> None:
    """Every test draws the same numbers, whatever ran before it in its process."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test starts and ends without a process group, variables of ranks and threads of its own."""
    end_group_and_ranks()  # of the shell that started the tests
    before = set(threading.enumerate())  # with those of fixtures that live longer
    yield
    if left := end_group_and_ranks() + threads_left(before):
        pytest.fail(describe(left, request.node.nodeid), pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def no_thread_left_behind_by_a_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """The threads of a file's own fixtures end with it."""
    before = set(threading.enumerate())
    yield
    if left := threads_left(before):
        pytest.fail(describe(left, f"a fixture of {request.node.nodeid}"), pytrace=False)


@pytest.fixture(scope="session")
def cold_starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with the cold starts of the configs that ship: each is made once, by whoever needs it first.

    Processes of pytest-xdist share it; the lock is the package's own. Not for tests of the cold start itself.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    (root / "cold_start").mkdir(parents=True, exist_ok=True)
    return root


@pytest.fixture(scope="session")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a page of docs/ (without .md) -> a folder with the files that it shows.

    One for all tests, because a plug-in may not be defined in two places.
    """
    from tests.support.pages import write_files

    @functools.cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp(name.replace("/", "-"))
        write_files(ROOT / "docs" / f"{name}.md", made)
        return made

    return folder


@pytest.fixture
def numpy_for_programs() -> None:
    """Skip where the sandbox's Python has no numpy and cannot load this environment's."""
    from gspo_lightning.core.errors import UserError
    from gspo_lightning.rewards.sandbox import choose, with_packages

    try:
        with_packages(choose(), ("numpy",))
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    from gspo_lightning.policy.tiny import character_tokenizer

    return character_tokenizer()


@pytest.fixture
def policy(tokenizer: PreTrainedTokenizerFast) -> Policy:
    """A fresh, untrained ``tiny-qwen3`` in eval mode."""
    from gspo_lightning.policy.policy import Policy
    from gspo_lightning.policy.tiny import build_tiny_model

    return Policy(build_tiny_model("tiny-qwen3", seed=0), tokenizer).eval()


@pytest.fixture
def prompts(tokenizer: PreTrainedTokenizerFast) -> list[Prompt]:
    """Four prompts of different lengths, with ids that are not their positions."""
    from gspo_lightning.core.types import Prompt

    texts = ["7+5*3-4:", "1:", "9-9:", "2*2*2*2*2:"]
    return [Prompt(10 + 3 * i, text, tuple(tokenizer(text)["input_ids"]), {}) for i, text in enumerate(texts)]
