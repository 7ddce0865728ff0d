"""Answers from a server with an OpenAI-compatible API: vLLM, SGLang, llama.cpp and others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
from collections.abc import Iterator, Mapping
from typing import Any

from gspo_lightning.commands.evaluate.answers import SampleRequests
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import Purpose, stream
from gspo_lightning.core.thinking import after_thinking
from gspo_lightning.data.prompts.specials import leading
from gspo_lightning.rollouts.serving.chat_requests import ChatRequests
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.serving.request_monitor import RequestMonitor
from gspo_lightning.training.suites.suite import Suite
from gspo_lightning.training.suites.verdicts import Answer

log = logging.getLogger(__name__)
_AT_ONCE = 64
"""Maximum concurrent requests; the server batches them."""
_PATIENCE_S = 3600.0
"""Longest time of one answer."""
_HEALTH_S = 30.0
"""Longest time of a server's answer to a question about itself."""
_TRIES = 5
"""Requests for one answer, if the server fails."""
_FIRST_PAUSE_S = 1.0
"""Pause before the second of them; each further one is twice as long."""


class Served:
    """Answers sampled by a server, one request each; the seed follows from the problem's index and the sample number.

    Requests use the chat route, or for a model without a chat template the completions route with the raw prompt.

    Args:
        endpoint: the server and its API key.
        model: served model name; None takes the first that the server lists.
    """

    recorded = False

    def __init__(self, endpoint: Endpoint, model: str | None = None) -> None:
        self.client = Client(endpoint, _PATIENCE_S, _HEALTH_S)
        self.loop = LoopThread("evaluate")
        try:
            self.asker = ChatRequests(self.client, model or self.loop.run(self.client.model()))
            self.loop.run(self._probe())
        except (ServerError, UnsupportedError) as error:
            self.close()
            raise UserError("--server", f"{endpoint.url}: {error}", fix="start it, or correct the address") from error

    def described(self) -> Mapping[str, Any]:
        """Return the model name and what the server decides; its address may change between interruptions."""
        return {"served": self.asker.model, **self.asker.described()}

    def answer(self, suite: Suite, wanted: SampleRequests, *, several: bool) -> Iterator[Answer]:
        """Yield answers in the order in which they arrive.

        Raises:
            InfrastructureError: the server stopped responding.
            UserError: the server refuses the request.
        """
        del several
        ready: queue.Queue[Answer | None] = queue.Queue(maxsize=4 * _AT_ONCE)
        work = self.loop.submit(self._all(suite, wanted, ready))
        try:
            yield from self._come(ready, work)
            work.result()  # re-raise its exception
        except ServerError as error:
            raise InfrastructureError(
                f"the server {self.client.url} does not answer any more: {error}; its answers so far are judged and "
                "kept: repeat the command to continue"
            ) from error
        except UnsupportedError as error:
            raise UserError("--server", f"{self.client.url}: {error}") from error
        finally:
            work.cancel()

    def close(self) -> None:
        """Close the connections."""
        self.loop.run(self.client.close())
        self.loop.close()

    async def _probe(self) -> None:
        """Ask what the server takes; one that does not answer says so when it is asked for answers."""
        monitor = RequestMonitor(self.client)
        with monitor.counted():
            probe = asyncio.ensure_future(self.asker.probe())
            watch = asyncio.ensure_future(monitor.watch())
            await asyncio.wait({probe, watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in (probe, watch):
                task.cancel()
            result, _ = await asyncio.gather(probe, watch, return_exceptions=True)
        if isinstance(result, UnsupportedError):
            raise result

    @staticmethod
    def _come(ready: queue.Queue[Answer | None], work: concurrent.futures.Future[None]) -> Iterator[Answer]:
        while not (work.done() and ready.empty()):
            try:
                answer = ready.get(timeout=0.2)
            except queue.Empty:
                continue
            if answer is not None:
                yield answer

    async def _all(self, suite: Suite, wanted: SampleRequests, ready: queue.Queue[Answer | None]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)
        monitor = RequestMonitor(self.client)

        async def ask(identifier: str, prompt: str, place: int, sample: int) -> None:
            try:
                with monitor.counted():
                    answer = await self._ask(suite, identifier, prompt, place, sample)
            finally:
                slots.release()
            while ready.full():  # grading is slower than the server
                await asyncio.sleep(0.05)
            ready.put_nowait(answer)

        try:
            async with asyncio.TaskGroup() as whole:
                watch = whole.create_task(monitor.watch())
                async with asyncio.TaskGroup() as group:
                    for place, (problem, samples) in enumerate(wanted):
                        for sample in samples:
                            await slots.acquire()
                            group.create_task(ask(problem.id, problem.prompt, place, sample))
                watch.cancel()
        except BaseExceptionGroup as errors:  # one is enough: the others repeat it
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def _ask(self, suite: Suite, identifier: str, prompt: str, place: int, sample: int) -> Answer:
        sampling = suite.sampling
        messages = [*leading(suite.system_prompt), {"role": "user", "content": prompt}]
        body: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_response_tokens,
            "seed": stream(sampling.seed, Purpose.EVAL_SAMPLING, place, sample) & 0x7FFFFFFF,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        pause = _FIRST_PAUSE_S
        for attempt in range(_TRIES):
            try:
                answers, usage = await self.asker.ask(messages, body)
                first = answers[0]
                return Answer(
                    identifier,
                    sample,
                    first.text,
                    usage.get("completion_tokens"),
                    first.truncated,
                    unfinished_thought=first.unfinished_thought or after_thinking(first.text) is None,
                )
            except ServerError as error:
                if attempt == _TRIES - 1 or isinstance(error.__cause__, TimeoutError):  # an hour was enough
                    raise
                log.warning("%s; once more in %g s", error, pause)
                await asyncio.sleep(pause)
                pause *= 2
        raise AssertionError
