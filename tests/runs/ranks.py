"""Two ranks: a function in two processes of one gloo group, or a whole ``gspo fit`` on several."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.runs import runs
from tests.runs.processes import SERVER, Command

__all__ = ["WORLD", "fit_on_ranks", "two_ranks"]

WORLD = 2


def two_ranks(task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``task(rank, *arguments)`` in two processes of one group; its results, or errors as text, by rank."""
    results = SERVER.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = [SERVER.Process(target=_join, args=(rank, store, results, task, arguments)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        try:
            found = dict(results.get(timeout=60) for _ in ranks)
        finally:
            for process in ranks:
                process.join(20)
                process.kill()
    return [found[rank] for rank in range(WORLD)]


def _join(rank: int, store: str, results: Any, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=20))
    try:
        found: Any = task(rank, *arguments)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    results.put((rank, found))
    dist.destroy_process_group()


def fit_on_ranks(
    root: Path, *options: str, overlay: str = "", config: Path = runs.QUICKSTART, ranks: int = WORLD,
    prepare: Callable[[], None] | None = None,
) -> Path:  # fmt: skip
    """``gspo fit`` on so many ranks, small and on a CPU; ``overlay`` is a strategy's config. Returns the only run."""
    argv = ["fit", f"--config={config}", *([f"--config={runs.ROOT / 'configs' / overlay}.yaml"] if overlay else [])]
    argv += [option for option in runs.SMALL if option != runs.FEW_PROMPTS or config == runs.QUICKSTART]
    argv += ["--trainer.accelerator=cpu", *options, f"--trainer.devices={ranks}", f"--trainer.default_root_dir={root}"]
    log = root.with_suffix(".log")
    codes = Command(argv, ranks, log=log, prepare=prepare).start().wait(240)
    assert set(codes) == {0}, log.read_text()
    (run,) = (root / config.stem).iterdir()
    return run
