"""Model provider ``gspo/``: checkpoints, run folders, Hugging Face models and servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from inspect_ai._util.error import PrerequisiteError  # Inspect prints it without a traceback; it has no public name
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from gspo_lightning.commands.inspect.request import Backend, Choice, Numbers, Request, Response, until
from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.randomness import Purpose, stream
from gspo_lightning.core.thinking import OPENING
from gspo_lightning.rollouts.serving.chat_requests import ChatAnswer, ChatRequests
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import given
from gspo_lightning.rollouts.serving.loop import LoopThread

_ARGUMENTS = ("server", "source", "revision", "trust_remote_code")
_TOKENS = 2048
"""Default limit of an answer."""
_REQUESTS = 256
"""Default number of concurrent requests."""
PATIENCE_S = 300.0
"""Seconds to retry a server that does not respond."""
_REFUSED = (
    "frequency_penalty", "presence_penalty", "logit_bias", "best_of", "top_logprobs", "prompt_logprobs",
    "response_schema", "extra_body",
)  # fmt: skip
"""Inspect settings that would change an answer and that no rollout source supports."""
AnyModel = "auto"
"""Model name that stands for the first model the server lists."""
_PATIENCE_S = 3600.0
"""Longest time of one answer."""
_HEALTH_S = 30.0
"""Longest time of a server's answer to a question about itself."""


@modelapi(name="gspo")
def gspo() -> type[ModelAPI]:
    """Return the model class; called by Inspect for ``--model gspo/...``."""
    return GSPOModel


class GSPOModel(ModelAPI):
    """Inspect model for checkpoints and servers.

    Without a temperature from Inspect it is 1, and other sampling is neutral, whatever a server's own settings. An
    answer ends after 2,048 tokens, and the seed is 0. Random draws depend on the seed, the conversation and how often
    it was asked before, not on timing.

    Args:
        model_name: a checkpoint of ``gspo fit``, a run folder (its newest checkpoint), a folder in transformers' format
            or a hub id; with a server the name of its model, ``auto`` for the first.
        base_url: of a server with OpenAI's routes (``--model-base-url``).
        api_key: unused; the key of a server is in ``VLLM_API_KEY``.
        config: of Inspect.
        model_args: ``server`` (the same as ``base_url``), ``source`` (name of a rollout source), ``revision``,
            ``trust_remote_code``.

    Raises:
        PrerequisiteError: a model argument is wrong, or there is no such model or server.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 (as Inspect declares it)
        **model_args: Any,
    ) -> None:
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        self._ill_since: float | None = None
        try:
            self.backend = _backend(model_name, base_url, model_args)
        except UserError as error:
            raise PrerequisiteError(str(error)) from error

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 (Inspect's name)
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Answer a conversation; concurrent requests are sampled together.

        Raises:
            PrerequisiteError: the request needs an unsupported feature.
            ServerError: the server does not respond; Inspect retries.
        """
        try:
            future = self.backend.ask(_request(input, tools, config))
            try:
                await until(future.done)
            except BaseException:  # Inspect has cancelled the sample
                future.cancel()
                raise
            response = future.result()
            self._ill_since = None
            return self._output(response)
        except UserError as error:
            raise PrerequisiteError(str(error)) from error

    def max_tokens(self) -> int | None:
        """Return the default limit of an answer in tokens."""
        return _TOKENS

    def max_connections(self) -> int:
        """Return the default number of concurrent requests, if Inspect does not adapt it."""
        return _REQUESTS

    def should_retry(self, ex: Exception) -> bool:
        """Retry on server errors; give up when a server has not responded for five minutes.

        Earlier answers are in the log: ``inspect eval-retry`` continues there.
        """
        if not isinstance(ex, ServerError):
            return False
        now = time.monotonic()
        if self._ill_since is None:
            self._ill_since = now
        return now - self._ill_since < PATIENCE_S

    def close(self) -> None:
        """Release the model, or the connections."""
        self.backend.close()

    def _output(self, response: Response) -> ModelOutput:
        read = response.prompt_tokens
        usage = None
        if read is not None:
            written = sum(choice.tokens for choice in response.choices)
            usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        choices = [self._choice(choice) for choice in response.choices]
        return ModelOutput(model=self.backend.name, choices=choices, usage=usage)

    def _choice(self, choice: Choice) -> ChatCompletionChoice:
        message = ChatMessageAssistant(content=choice.text, model=self.backend.name, source="generate")
        logprobs = None
        if choice.logprobs is not None:
            logprobs = Logprobs(content=[Logprob(token=token, logprob=value) for token, value in choice.logprobs])
        return ChatCompletionChoice(message=message, stop_reason=choice.stop, logprobs=logprobs)


def _backend(name: str, base_url: str | None, arguments: dict[str, Any]) -> Backend:
    for argument in arguments:
        if argument not in _ARGUMENTS:
            raise UserError(
                "-M", f"{argument!r} is not a model argument of gspo/; {did_you_mean(argument, _ARGUMENTS)}"
            )
    server = arguments.pop("server", None) or base_url
    if server is not None:
        if arguments:
            raise UserError("-M", f"{', '.join(arguments)} does not go with a server", fix="set it on the server")
        return Remote(str(server), name)
    from gspo_lightning.commands.inspect.sampled import InProcess  # torch

    return InProcess(name, **arguments)


def _request(messages: Sequence[ChatMessage], tools: Sequence[ToolInfo], config: GenerateConfig) -> Request:
    """Convert Inspect's request to :class:`Request`.

    Raises:
        UserError: it needs a feature that no rollout source supports.
    """
    if tools:
        raise UserError("gspo/", "calls no tools", fix="use a task without tools, or Inspect's own provider vllm/")
    for name in _REFUSED:
        if getattr(config, name, None) is not None:
            raise UserError("gspo/", f"does not know {name}, which would change the answers", fix=f"leave out {name}")
    return Request(
        messages=tuple(_plain(message) for message in messages),
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_tokens=config.max_tokens or _TOKENS,
        stop=tuple(config.stop_seqs or ()),
        seed=config.seed or 0,
        choices=config.num_choices or 1,
        logprobs=bool(config.logprobs),
    )


def _plain(message: ChatMessage) -> Any:
    if message.role not in ("system", "user", "assistant"):
        raise UserError("gspo/", f"takes messages of system, user and assistant, got one of {message.role!r}")
    if not isinstance(message.content, str):
        kinds = {part.type for part in message.content} - {"text", "reasoning"}
        if kinds:
            raise UserError("gspo/", f"reads text only, and a message holds {', '.join(sorted(kinds))}")
    return message.role, message.text


def _shown(answer: ChatAnswer) -> str:
    """Return the text of an answer; scorers see it alone, so a thought that the template opened is opened in it."""
    return f"{OPENING}\n{answer.text}" if answer.unfinished_thought else answer.text


class Remote:
    """Backend for a server, which batches the requests itself. Its key is in ``VLLM_API_KEY``.

    Args:
        url: ``http://host:port``, ``https://host:port`` or ``unix:/path``.
        name: name of the server's model; ``auto`` takes the first one it lists.

    Raises:
        UserError: the URL is malformed, or the server does not respond.
    """

    def __init__(self, url: str, name: str = AnyModel) -> None:
        [endpoint] = given([url], plain_http=False)
        self.client = Client(endpoint, _PATIENCE_S, _HEALTH_S)
        self.loop = LoopThread("gspo-inspect")
        self._numbers = Numbers()
        try:
            self.name = self.loop.run(self.client.model()) if name == AnyModel else name
            self.asker = ChatRequests(self.client, self.name)
            self.loop.run(self._probe())
        except (ServerError, UnsupportedError) as error:
            self.close()
            raise UserError("gspo/", f"{url}: {error}", fix="start the server, or correct the address") from error

    async def _probe(self) -> None:
        with suppress(TimeoutError):  # a slow server is asked later, by the first request
            await asyncio.wait_for(self.asker.probe(), _HEALTH_S)

    def ask(self, request: Request) -> Future[Response]:
        """Send a request to the server."""
        seed = stream(request.seed, Purpose.EVAL_SAMPLING, self._numbers.next(request.messages)) & 0x7FFFFFFF
        return self.loop.submit(self._respond(request, seed))

    def close(self) -> None:
        """Close the connections to the server."""
        self.loop.run(self.client.close())
        self.loop.close()

    async def _respond(self, request: Request, seed: int) -> Response:
        if request.logprobs:
            raise UserError("gspo/", "gives no log-probabilities of a server", fix="leave out --logprobs")
        messages = [{"role": role, "content": text} for role, text in request.messages]
        body: dict[str, Any] = {"max_tokens": request.max_tokens, "seed": seed, "n": request.choices}
        if request.stop:
            body["stop"] = list(request.stop)
        body["temperature"] = 1.0 if request.temperature is None else request.temperature
        if request.top_p is not None:
            body["top_p"] = request.top_p
        if request.top_k is not None:
            body["top_k"] = request.top_k
        try:
            answers, usage = await self.asker.ask(messages, body)
        except UnsupportedError as error:
            raise UserError("gspo/", f"{self.client.url}: {error}") from error
        except ServerError as error:
            raise ServerError(f"{self.client.url}: {error}") from error
        tokens = int(usage.get("completion_tokens") or 0) // len(answers)  # servers count those of all answers together
        choices = []
        for answer in answers:
            choices.append(Choice(_shown(answer), tokens, "max_tokens" if answer.truncated else "stop"))
        return Response(tuple(choices), usage.get("prompt_tokens"))
