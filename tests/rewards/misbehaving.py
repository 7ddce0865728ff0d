"""Rewards that do what rewards and model text do to a trainer, bounded. Underscored: not registered."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from typing import ClassVar

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import Reward, Sample, Score


class _Obeys(Reward):
    """Does what the completion says; anything else is worth its length."""

    def score(self, completion: str) -> float | Score | None:
        if completion == "hang":
            while True:
                pass
        if completion == "sleep":
            time.sleep(60)
        if completion == "hog":
            return float(len([bytes(1 << 26) for _ in range(1000)]))  # calloc: costs address space, not time
        if completion == "huge":
            return float(len("x" * (1 << 36)))
        if completion == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if completion == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if completion == "fork":
            if os.fork() == 0:
                while True:
                    pass
            time.sleep(60)
        if completion == "regex":
            re.fullmatch(r"(a+)+b", "a" * 40)
        if completion == "pid":
            return float(os.getpid())
        if completion == "burn":
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
        if completion == "none":
            return None
        return float(len(completion))


class _Batch(Reward):
    """The same, but all samples by one call."""

    def score_batch(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        one = _Obeys()
        return [one.score(sample.completion) for sample in samples]


class _Async(Reward):
    async def score(self, completion: str) -> float:
        await asyncio.sleep(0.2)
        return float(len(completion))


class _AsyncBatch(Reward):
    async def score_batch(self, samples: Sequence[Sample]) -> list[float]:  # type: ignore[override]
        await asyncio.sleep(0)
        return [float(len(sample.completion)) for sample in samples]


class _Slow(Reward):
    def score(self, completion: str) -> float:
        time.sleep(0.002)
        return float(len(completion))


class _Marks(Reward):
    """Adds a byte to a file for each text, before it is scored."""

    def __init__(self, path: str) -> None:
        self.path = path

    def score(self, completion: str) -> float:
        with open(self.path, "ab") as file:
            file.write(b".")
        time.sleep(0.002)
        return float(len(completion))


class _Prints(Reward):
    def score(self, completion: str) -> float:
        print("noise", "\x00" * 50)
        sys.stdout.flush()
        os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x10raw noise")
        return float(len(sys.stdin.read()))


class _Modules(Reward):
    """1 if torch has been imported where it runs."""

    def score(self, completion: str) -> float:
        return float("torch" in sys.modules)


class _Raises(Reward):
    def score(self, completion: str) -> float:
        if completion == "boom":
            raise LookupError("no such key")
        return 1.0


class _Forks(Reward):
    """Both processes come back, each in its own way."""

    def __init__(self, way: str = "returns") -> None:
        self.way = way

    def score(self, completion: str) -> float:
        if os.fork() == 0:
            if self.way == "raises":
                raise LookupError("in the child")
            if self.way == "exits":
                sys.exit()
            if self.way == "ends":
                os._exit(0)
            if self.way == "returns later":
                time.sleep(0.3)
            return 9.0
        if self.way != "returns later":
            os.wait()
        return float(len(completion))


class _Exits(Reward):
    def score(self, completion: str) -> float:
        sys.exit("on purpose")


class _Kills(Reward):
    def score(self, completion: str) -> float:
        os._exit(4)


class _Refuses(Reward):
    """Raises an error of this package, with a message of megabytes."""

    def score(self, completion: str) -> float:
        raise UserError("field", "x" * 3_000_000)


class _Leaks(Reward):
    kept: ClassVar[list[bytes]] = []

    def score(self, completion: str) -> float:
        self.kept.append(bytes(1 << 22))
        return 1.0


class _Returns(Reward):
    """Returns what it was built with."""

    def __init__(self, value: object) -> None:
        self.value = value

    def score(self, completion: str) -> object:
        return self.value


class _TooShort(Reward):
    def score_batch(self, samples: Sequence[Sample]) -> list[float]:
        return [0.0] * (len(samples) - 1)


class _InTrainer(Reward):
    where = "trainer"

    def score(self, completion: str) -> float:
        return float(os.getpid())


class _NeedsColumn(Reward):
    def score(self, completion: str, difficulty: float) -> float:
        return difficulty


class _DiesAtStart(Reward):
    def prepare(self) -> None:
        os._exit(3)

    def score(self, completion: str) -> float:
        return 1.0


def trl_style(prompts: list[str], completions: list[str], answer: list[str], **columns: list[object]) -> list[float]:
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def one_value(completions: list[str]) -> float:
    return 1.0


async def trl_async(completions: list[str]) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if not c else 1.0 for c in completions]


class _Applies(Reward):
    """Judges records of one source, and has nothing to say about others."""

    def __init__(self, source: str) -> None:
        self.source = source

    def score(self, completion: str, source: str) -> Score:
        return Score(1.0) if source == self.source else Score.missing(f"not of {self.source}")


class _ReadsMessages(Reward):
    """Needs what a conversation brings."""

    def score(self, messages: Sequence[dict[str, str]]) -> float:
        return float(len(messages[-1]["content"]))


class _OnlyMath(Reward):
    """Judges one source, and says itself that it does not apply to the others."""

    def score(self, completion: str, source: str) -> Score:
        return Score(1.0) if source == "math" else Score.not_applicable()
