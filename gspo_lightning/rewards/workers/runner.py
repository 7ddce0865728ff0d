"""``RewardRunner``: rewards for many completions, from worker processes that may hang, crash or leak without harm."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from gspo_lightning.core.errors import GSPOError, InfrastructureError, UserError, did_you_mean, place_of
from gspo_lightning.core.registry import import_plugins, plugin_files
from gspo_lightning.rewards.by_record import ByRecord, Judges, RewardChoice, applying_weight
from gspo_lightning.rewards.canned import FEW, canned, conversation_columns, pays_more, silent, thoughts, unreadable
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.scores import summed
from gspo_lightning.rewards.signature import BUILT_IN
from gspo_lightning.rewards.types import Sample, SampleScore, Score, ScoreStatus
from gspo_lightning.rewards.workers.agreement import agreements, check_agreements
from gspo_lightning.rewards.workers.dispatcher import Dispatcher
from gspo_lightning.rewards.workers.jobs import Job, Limits, settled
from gspo_lightning.rewards.workers.judge import is_refusal, judge, plugin_error
from gspo_lightning.rewards.workers.protocol import Setup
from gspo_lightning.rewards.workers.runner_settings import check_settings, default_workers, fill_weights, pickle_rewards

log = logging.getLogger(__name__)

_FEW_LOST = 4
"""Number of lost samples that never stop a run, however few were scored."""


class Pending:
    """Samples that are being scored; :meth:`result` waits for them."""

    def __init__(self, runner: RewardRunner, job: Job) -> None:
        self._runner = runner
        self._job = job
        self._scores: list[SampleScore] | None = None

    def done(self) -> bool:
        """True if :meth:`result` would return at once, apart from rewards that run in the trainer."""
        return self._job.finished.is_set()

    @property
    def lost(self) -> list[SampleScore]:
        """The scores of samples that are missing because workers were lost, not because of a reward."""
        return [self.result()[i] for i in sorted(self._job.lost)]

    def result(self) -> list[SampleScore]:
        """Return one score per sample, in order; rewards of the trainer are computed here, in the calling thread.

        Raises:
            UserError: a reward raised, or returned something that is not a reward.
            InfrastructureError: more samples were lost than ``max_missing_rate`` allows, or no worker starts.
        """
        if self._scores is None:
            self._scores = self._runner.gather([self])
        return self._scores


class RewardRunner:
    """A scorer of samples with several rewards, each sample under a hard deadline.

    Rewards with ``where = "worker"`` run in processes that are killed when a sample uses up its time or memory. Such a
    sample has reward 0 (``timeout``, ``model_error``), a sample whose worker was lost twice is *missing*, and other
    samples are unaffected. Rewards with ``where = "trainer"`` run in the calling thread.

    Args:
        rewards: name -> reward, or several rewards with a column of the record that chooses one
            (:class:`gspo_lightning.rewards.by_record.ByRecord`).
        weights: name -> weight in the sum; 1 by default.
        num_workers: worker processes; None leaves a core to each trainer on this machine and shares the rest.
        deadline_s: CPU seconds that one sample may use in one reward.
        memory_mb: address space of a worker (MiB).
        recycle_after: samples after which a worker is replaced as soon as no task waits for it.
        max_missing_rate: share of samples per call that the infrastructure may lose before the run stops.
        plugins: files, folders or modules of plug-ins; imported here if they are not yet.

    Raises:
        UserError: no rewards, a number out of its range, a weight without a reward, or a reward that cannot be sent
            to a worker.

    >>> from gspo_lightning.rewards import ExactMatch
    >>> with RewardRunner({"correct": ExactMatch()}, num_workers=1) as runner:
    ...     [score.reward for score in runner.score([Sample("0", "1+1:", "#2", columns={"answer": "2"})])]
    [1.0]
    """

    def __init__(
        self,
        rewards: Mapping[str, RewardChoice | ByRecord],
        weights: Mapping[str, float] | None = None,
        num_workers: int | None = None,
        deadline_s: float = 3.0,
        memory_mb: int = 2048,
        recycle_after: int = 500,
        max_missing_rate: float = 0.1,
        plugins: Sequence[str] = (),
    ) -> None:
        workers = default_workers() if num_workers is None else num_workers
        self.judges = Judges(rewards)
        self.rewards = self.judges.single
        check_settings(self.rewards, workers, deadline_s, memory_mb, recycle_after, max_missing_rate)
        check_agreements(self.judges)
        self.weights = fill_weights(self.judges.given, weights or {})
        self.max_missing_rate = max_missing_rate
        import_plugins(plugins)
        self._remote = {name: r for name, r in self.rewards.items() if r.where == "worker"}
        self._limits = Limits(workers, deadline_s, memory_mb, recycle_after)
        self._pickled = pickle_rewards(self._remote)
        self._dispatcher: Dispatcher | None = None
        self._prepared: set[str] = set()
        self._counted = False

    # life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers; returns at once while their imports continue in the background."""
        if self._dispatcher is None and self._remote:
            self._dispatcher = Dispatcher(self._remote, self._setup(), self._limits)
            weakref.finalize(self, self._dispatcher.close)  # at the end of the program, too

    def close(self) -> None:
        """Kill the workers and wait until they are gone; scoring again starts new ones."""
        dispatcher = self._dispatcher
        self._dispatcher = None
        if dispatcher is not None:
            dispatcher.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def worker_pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        return self._dispatcher.pids() if self._dispatcher is not None else []

    # scoring -----------------------------------------------------------------------------------------------------

    def score(self, samples: Sequence[Sample]) -> list[SampleScore]:
        """Score samples, one score each, in order; for exceptions see :meth:`Pending.result`."""
        return self.submit(samples).result()

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Start scoring in the background; the caller can go on, for example with generation."""
        return Pending(self, self._begin(samples))

    def gather(self, pending: Sequence[Pending]) -> list[SampleScore]:
        """Return the scores of several submissions, one after another; ``max_missing_rate`` counts over all of them.

        Raises:
            UserError, InfrastructureError: see :meth:`Pending.result`.
        """
        try:
            return self._finish([p._job for p in pending])
        except GSPOError as error:
            _report(error)
            raise

    def check(
        self,
        columns: Collection[str],
        prompt: str = "canned prompt",
        others: Sequence[tuple[Mapping[str, Any], str]] = (),
        *,
        conversation: bool = False,
    ) -> None:
        """Verify the rewards before the first rollout.

        Every required column must be there. Each reward then scores canned completions (empty, short, and with the
        answer in it) on the real path. Rewards that need columns can do so only if an example record is given.

        Args:
            columns: names of the records' columns, or an example record as a mapping.
            prompt: of the canned samples.
            others: more records with their prompts, for rewards that return None for the first. Rewards that read
                answers try all of them, and a warning counts the records that they cannot read.
            conversation: samples will have the columns of a conversation.

        Raises:
            UserError: a required column is missing, a reward raises or returns something that is not a reward, or
                returns None for all canned completions.
        """
        record: Mapping[str, Any] = columns if isinstance(columns, Mapping) else {}
        self._check_columns(record, [*columns, *(conversation_columns("", "") if conversation else ())])
        samples = canned(record, prompt, conversation)
        scores = self._judge(samples)
        self._check_time(samples, scores)
        self._check_judged(record)
        if silent(self.judges, samples, [score.parts for score in scores]) and others:
            some = others[:: max(1, len(others) // FEW)]
            more = [sample for other, text in some for sample in canned(other, text, conversation)]
            samples = samples + more
            scores = scores + self._judge(more)
        for name, reasons in silent(self.judges, samples, [score.parts for score in scores]).items():
            raise UserError(
                f"rewards.{name}",
                f"{type(self.rewards[name]).__name__} gives none of {len(samples)} canned completions (empty, short, "
                f"with the answer in it) a reward: {reasons}",
                fix="return a number for what can be judged (0 for a wrong answer) and None for the rest",
            )
        self._count_unreadable(others)

    def _check_columns(self, record: Mapping[str, Any], there: Sequence[str]) -> None:
        """Check that every required column is there; of a known record, only for rewards that apply to it."""
        for name, column in self.judges.columns().items():
            if column not in there:
                near = did_you_mean(column, there)
                raise UserError(f"rewards.{name}.by", f"is {column!r}, a column that the records do not have; {near}")
        for name, reward in self.rewards.items():
            if record and self.judges.silence(name, record) is not None:
                continue
            for column in reward.required_columns():
                if column not in there:
                    near = did_you_mean(column, [*there, *BUILT_IN])
                    raise UserError(
                        f"rewards.{name}",
                        f"{type(reward).__name__} needs the column {column!r}, which the records do not have; {near}",
                        fix="map a column of the data to it (data.columns), or rename the parameter",
                    )

    def _check_time(self, samples: Sequence[Sample], scores: Sequence[SampleScore]) -> None:
        """Check that every reward scores the canned completions in time."""
        names = [*(repr(sample.completion) for sample in samples[:2]), "that is the first record's answer"]
        for text, score in zip(names, scores, strict=True):
            for name, part in score.parts.items():
                if part.status is ScoreStatus.TIMEOUT:
                    raise UserError(
                        f"rewards.{name}",
                        f"needs more than {self._limits.deadline_s:g} s for the canned completion {text}",
                        fix="make it faster, or raise the deadline",
                    )

    def _check_judged(self, record: Mapping[str, Any]) -> None:
        """Check that some reward applies to the record, if it is known."""
        if not record or self.judges.applying(record):
            return
        name, column = next(iter(self.judges.columns().items()))
        value = str(record.get(column))
        near = did_you_mean(value, [key.removeprefix(f"{name}.") for key in self.rewards])
        raise UserError(
            f"rewards.{name}",
            f"no reward applies to a record with {column} = {value!r}; {near}",
            fix=f"name a reward for it ({value}: ...), or one for all others (default: ...)",
        )

    def unreadable(self, records: Sequence[tuple[Mapping[str, Any], str]]) -> dict[str, str]:
        """Return, by reward name, a message about records (columns, prompt) whose answer a reward cannot read."""
        names = [name for name, reward in self._remote.items() if reward.reads_answers]
        samples = [Sample(f"record/{i}", text, "", (), record) for i, (record, text) in enumerate(records)]
        messages = {}
        for name in names if samples else ():
            scores = self._parts(samples, [name])[name]
            message = unreadable([record for record, _ in records], scores)
            if message is not None:
                messages[name] = message
        return messages

    def demand_openings(self, record: Mapping[str, Any], prompt: str) -> list[str]:
        """Return the rewards of workers that pay less for a thought that the prompt, not the completion, has opened."""
        names = [name for name, reward in self._remote.items() if not reward.finds_answers]
        samples = [sample for pair in thoughts(record, prompt) for sample in pair]
        return [name for name, scores in self._parts(samples, names).items() if pays_more(scores)]

    def _parts(self, samples: Sequence[Sample], names: Collection[str]) -> Mapping[str, Sequence[Score | None]]:
        job = self._begin(samples, names)
        job.finished.wait()
        if job.error is not None:
            raise job.error
        return job.parts

    def _count_unreadable(self, others: Sequence[tuple[Mapping[str, Any], str]]) -> None:
        """Warn, once, about records whose answer a reward cannot read."""
        if not others or self._counted or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        messages = self.unreadable(others)
        self._counted = any(reward.reads_answers for reward in self._remote.values())
        for name, message in messages.items():
            log.warning("rewards.%s: %s", name, message)

    def _judge(self, samples: Sequence[Sample]) -> list[SampleScore]:
        job = self._begin(samples)
        scores = self._finish([job])
        if job.lost:
            part = next(p for p in scores[min(job.lost)].parts.values() if p.status is ScoreStatus.MISSING)
            raise InfrastructureError(f"a canned completion could not be scored: {part.detail}")
        return scores

    # inside ------------------------------------------------------------------------------------------------------

    def _begin(self, samples: Sequence[Sample], names: Collection[str] | None = None) -> Job:
        kept = list(samples)
        names = self._remote if names is None else names
        parts = {name: [self.judges.silence(name, sample.columns) for sample in kept] for name in names}
        job = Job(kept, parts, open=sum(score is None for scores in parts.values() for score in scores))
        if job.open == 0:
            job.finished.set()
        else:
            self.start()
            assert self._dispatcher is not None
            self._dispatcher.submit(job)
        return job

    def _finish(self, jobs: Sequence[Job]) -> list[SampleScore]:
        samples = [sample for job in jobs for sample in job.samples]
        columns: dict[str, Sequence[Score | None]] = {}
        for name, reward in self.rewards.items():
            if name not in self._remote:
                columns[name] = self._score_applying(name, reward, samples)
        for job in jobs:
            job.finished.wait()
            if job.error is not None:
                raise job.error
        self._check_lost(jobs, len(samples))
        for name in self._remote:
            columns[name] = [score for job in jobs for score in job.parts[name]]
        rows = range(len(samples))
        return [self._join({name: settled(columns[name][row]) for name in self.rewards}) for row in rows]

    def _check_lost(self, jobs: Sequence[Job], samples: int) -> None:
        lost = [(job, i) for job in jobs for i in sorted(job.lost)]
        if len(lost) <= max(_FEW_LOST, self.max_missing_rate * samples):
            return
        job, first = lost[0]
        scores = [scores[first] for scores in job.parts.values()]
        details = next(score.detail for score in scores if score and score.status is ScoreStatus.MISSING)
        raise InfrastructureError(
            f"{len(lost)} of {samples} samples could not be scored, more than the tolerated share of "
            f"{self.max_missing_rate:g}; the first, {job.samples[first].id}: {details}"
        )

    def _score_applying(self, name: str, reward: Reward, samples: Sequence[Sample]) -> list[Score]:
        """Score all samples with a reward of the trainer, which need not apply to all of them."""
        silences = [self.judges.silence(name, sample.columns) for sample in samples]
        judged = [sample for sample, silence in zip(samples, silences, strict=True) if silence is None]
        scores = iter(self._score_here(name, reward, judged))
        return [next(scores) if silence is None else silence for silence in silences]

    def _score_here(self, name: str, reward: Reward, samples: Sequence[Sample]) -> list[Score]:
        trainer = os.getpid()
        try:
            return self._judge_here(name, reward, samples)
        finally:
            if os.getpid() != trainer:  # a child that the reward forked would train on, too
                os.write(2, f"rewards.{name}: a child that it forked came back from score() and was ended\n".encode())
                os._exit(1)

    def _judge_here(self, name: str, reward: Reward, samples: Sequence[Sample]) -> list[Score]:
        scores: list[Score] = []
        try:
            if name not in self._prepared:
                reward.prepare()
                self._prepared.add(name)
            scores.extend(judge(name, reward, samples))
        except Exception as error:
            settings_wrong = isinstance(error, UserError) and name not in self._prepared  # its message names the fix
            if settings_wrong or is_refusal(error, name):
                raise
            at = samples[min(len(scores), len(samples) - 1)].id if samples else "-"
            raise plugin_error(name, at, f"{type(error).__name__}: {error}", "", str(place_of(error) or "")) from error
        return scores

    def _join(self, singles: dict[str, Score]) -> SampleScore:
        parts = self.judges.join(singles)
        applies = {name: part.status is not ScoreStatus.NOT_APPLICABLE for name, part in parts.items()}
        weighted = {name: weight for name, weight in self.weights.items() if weight != 0}
        counted = [(weight, parts[name].reward) for name, weight in weighted.items() if applies[name]]
        total = summed(weight * value for weight, value in counted if value is not None)
        missing = any(value is None for _, value in counted) or bool(weighted and not counted)
        total *= applying_weight(self.weights, applies)
        single = any(parts[name].single for name in weighted)
        return SampleScore(None if missing else total, parts, agreements(self.judges, singles, parts), single)

    def _setup(self) -> Setup:
        return Setup(
            rewards=self._pickled,
            sys_path=list(sys.path),
            memory_mb=self._limits.memory_mb,
            deadline_s=self._limits.deadline_s,
            parent_pid=os.getpid(),
            plugin_files=plugin_files(),
        )


def _report(error: GSPOError) -> None:
    """Log the error that stops the run, on every rank but the first.

    The command line prints only the first rank's errors, and the others would see no more than a closed connection.
    """
    if (rank := os.environ.get("LOCAL_RANK", "0")) != "0":
        log.error("rank %s stops the run: %s", rank, error)
