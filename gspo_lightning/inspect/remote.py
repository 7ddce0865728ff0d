"""Answer requests with a server that has OpenAI's routes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.inspect.asked import Asked, Choice, Numbers, Told
from gspo_lightning.randomness import Purpose, stream
from gspo_lightning.rollouts.serving.asking import Asker
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import given
from gspo_lightning.rollouts.serving.loop import LoopThread

__all__ = ["AnyModel", "Remote"]

AnyModel = "auto"
"""Model name that stands for the first model the server lists."""
_PATIENCE_S, _HEALTH_S = 3600.0, 30.0


class Remote:
    """Backend for a server, which batches the requests itself. Its key is in ``VLLM_API_KEY``.

    Args:
        url: ``http://host:port``, ``https://host:port`` or ``unix:/path``.
        name: name of the server's model; ``auto`` takes the first one it lists.

    Raises:
        UserError: the URL is malformed, or the server does not respond.
    """

    def __init__(self, url: str, name: str = AnyModel) -> None:
        self.client = Client(given([url], plain_http=False)[0], _PATIENCE_S, _HEALTH_S)
        self.loop, self._numbers = LoopThread("gspo-inspect"), Numbers()
        try:
            self.name = self.loop.run(self.client.model()) if name == AnyModel else name
        except (ServerError, UnsupportedError) as error:
            self.close()
            raise UserError("gspo/", f"{url}: {error}", fix="start the server, or correct the address") from error
        self.asker = Asker(self.client, self.name)

    def ask(self, asked: Asked) -> Future[Told]:
        """See :class:`gspo_lightning.inspect.asked.Backend`."""
        seed = stream(asked.seed, Purpose.EVAL_SAMPLING, self._numbers.next(asked.messages)) & 0x7FFFFFFF
        return self.loop.submit(self._told(asked, seed))

    def close(self) -> None:
        """See :class:`gspo_lightning.inspect.asked.Backend`."""
        self.loop.run(self.client.close())
        self.loop.close()

    async def _told(self, asked: Asked, seed: int) -> Told:
        if asked.logprobs:
            raise UserError("gspo/", "gives no log-probabilities of a server", fix="leave out --logprobs")
        messages = [{"role": role, "content": text} for role, text in asked.messages]
        body: dict[str, Any] = {"max_tokens": asked.max_tokens, "seed": seed, "n": asked.choices}
        body |= {"stop": list(asked.stop)} if asked.stop else {}
        optional = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
        body |= {name: value for name, value in optional.items() if value is not None}
        try:
            spoken, usage = await self.asker.ask(messages, body)
        except UnsupportedError as error:
            raise UserError("gspo/", f"{self.client.url}: {error}") from error
        except ServerError as error:
            raise ServerError(f"{self.client.url}: {error}") from error
        tokens = int(usage.get("completion_tokens") or 0) // len(spoken)
        choices = (Choice(one.text, tokens, "max_tokens" if one.truncated else "stop") for one in spoken)
        return Told(tuple(choices), usage.get("prompt_tokens"))
