"""Environments of OpenEnv, over the WebSocket of their servers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.addresses import check_address
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.rollouts.environments.environment import Environment, Messages, Step

if TYPE_CHECKING:
    import aiohttp

_MOST_BYTES = 16 << 20
_UNSENT = "Unable to serialize unknown type: <class '"
"""Begins the message of a session that ended because pydantic's complaint holds an exception (OpenEnv 0.10)."""


class OpenEnvEnvironment(Environment):
    """An environment behind a server of OpenEnv, with a session of its own for every conversation.

    A turn of the policy is the text of an action, and a field of the observation is what the policy reads next; null
    at the end is no message. The reward of the observation is that of the turn. A turn without one adds nothing, but
    the observation that ends the conversation must have one, or the conversation is missing: NaN arrives as null, too.
    An action that is invalid is answered with the server's complaint; one that makes the environment raise is a failure
    of the environment, and so is an invalid value of the environment's own. The server gets the column
    ``seed`` of the record, or the number of the prompt, so that all conversations about a prompt begin alike, and
    further columns by ``reset``.

    Args:
        url: ``http://host:port`` of the server.
        action: field of the action that gets the text.
        observation: field of the observation that the policy reads.
        reset: columns of the record that are passed to the server's reset.
        opens: the first observation takes the place of the prompt; otherwise the policy does not read it.
        role: role of the messages with observations.
        sessions: conversations at the same time; the server's ``max_concurrent_envs`` must allow them.

    Raises:
        UserError: the address is none.
    """

    def __init__(
        self,
        url: str,
        action: str = "message",
        observation: str = "message",
        reset: list[str] | None = None,
        opens: bool = False,
        role: str = "user",
        sessions: int = 64,
    ) -> None:
        check_address(url, "OpenEnvEnvironment.url", "", key=None, plain_http=True)
        if sessions < 1:
            raise UserError("OpenEnvEnvironment.sessions", f"is {sessions}; it must be at least 1")
        self.url = url.rstrip("/")
        self.action = action
        self.observation = observation
        self.columns = reset or []
        self.opens = opens
        self.role = role
        self.max_concurrent = sessions
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, prompt: Prompt) -> Messages:
        """Open a session and reset it.

        Raises:
            InfrastructureError: the server cannot be reached, or fails.
            UserError: the record lacks a column, or the observation the field; or the server allows fewer sessions.
        """
        import aiohttp

        missing = [name for name in self.columns if name not in prompt.columns]
        if missing:
            raise UserError("OpenEnvEnvironment.reset", f"names {missing[0]}, which record {prompt.id} does not have")
        self._http = aiohttp.ClientSession(auto_decompress=False)
        try:
            self._socket = await self._http.ws_connect(f"{self.url}/ws", max_msg_size=_MOST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from error
        data = {"seed": prompt.columns.get("seed", prompt.id)} | {name: prompt.columns[name] for name in self.columns}
        reply = await self._ask("reset", data)
        return [self._message(reply)] if self.opens else []

    async def step(self, completion: str) -> Step:
        """Send the text as an action; one that the server refuses is answered with its complaint.

        Raises:
            InfrastructureError: the server failed, or ended the conversation without a reward.
            UserError: the observation lacks the field, or actions have other fields.
        """
        reply = await self._ask("step", {self.action: completion})
        if "refused" in reply:
            return [{"role": self.role, "content": f"error: {reply['refused']}"}], 0.0, False
        done = bool(reply.get("done"))
        nothing = done and reply["observation"].get(self.observation) is None
        messages: Messages = [] if nothing else [self._message(reply)]
        reward = reply.get("reward")
        if (done and reward is None) or not math.isfinite(reward or 0.0):
            problem = "ended the conversation without a reward" if reward is None else f"gave the reward {reward}"
            raise InfrastructureError(f"{self.url} {problem} (null on its wire is None, NaN or an infinity)")
        return messages, float(reward or 0.0), done

    async def close(self) -> None:
        """End the session."""
        socket = self._socket
        http = self._http
        self._socket = None
        self._http = None
        if socket is not None and not socket.closed:
            await socket.send_str('{"type": "close"}')
            await socket.close()
        if http is not None:
            await http.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the server answers; ``{"refused": why}`` where an action is not valid."""
        import aiohttp

        assert self._socket is not None
        try:
            await self._socket.send_str(json.dumps({"type": kind, "data": data}))
            answer = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise InfrastructureError(f"{self.url}: {type(error).__name__}: {error}") from error
        if answer.type is not aiohttp.WSMsgType.TEXT:
            raise InfrastructureError(f"{self.url} ended the session")
        message = json.loads(answer.data)
        reply = message.get("data") or {}
        if message.get("type") == "error":
            if kind == "step" and reply.get("code") == "VALIDATION_ERROR":
                self._check_fields(reply, data)
                if _is_about(reply, data):
                    return {"refused": _refusal(reply)}
            raise self._failure(kind, data, reply)
        if not isinstance(reply.get("observation"), Mapping):
            raise InfrastructureError(f"{self.url} answered {kind} without an observation")
        return reply

    def _check_fields(self, reply: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Refuse an ``action`` that no text makes valid: the server wants other fields, or further ones."""
        unknown = _fields(reply, "extra_forbidden", data[self.action])
        required = _fields(reply, "missing", dict(data))
        if required and self.action in unknown and len(required) == 1:
            problem = f"is {self.action!r}, but the text of an action is in {required[0]!r}"
            raise UserError("OpenEnvEnvironment.action", problem, fix=f"set action: {required[0]}")
        if required or self.action in unknown:
            needs = f"needs {', '.join(required)}" if required else "has no such field"
            problem = f"is {self.action!r}, but an action of {self.url} {needs}"
            fix = "name the one field that actions need; servers whose actions need several are not supported"
            raise UserError("OpenEnvEnvironment.action", problem, fix=fix)

    def _failure(self, kind: str, data: Mapping[str, Any], reply: Mapping[str, Any]) -> Exception:
        """Return the error for an answer that is one, with the action that led to it."""
        code = reply.get("code")
        allowed = reply.get("max_sessions")
        if code == "CAPACITY_REACHED" and isinstance(allowed, int) and allowed < self.max_concurrent:
            problem = f"is {self.max_concurrent}, but {self.url} allows {allowed} at a time (its max_concurrent_envs)"
            fix = f"set sessions: {allowed}, or start the server with max_concurrent_envs={self.max_concurrent}"
            return UserError("OpenEnvEnvironment.sessions", problem, fix=fix)
        why = _refusal(reply) if code == "VALIDATION_ERROR" else str(reply.get("message"))
        after = f" after the action {data[self.action]!r}" if kind == "step" else ""
        if kind == "step" and code == "SESSION_ERROR" and why.startswith(_UNSENT):
            why += " (a validator of its action raised this; OpenEnv can only report constraints of fields)"
        return InfrastructureError(f"{self.url} failed in {kind}{after}: {code}: {why}")

    def _message(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        observation = reply["observation"]
        if self.observation not in observation:
            problem = f"names {self.observation!r}, but an observation has {', '.join(observation)}"
            raise UserError("OpenEnvEnvironment.observation", problem)
        value = observation[self.observation]
        return {
            "role": self.role,
            "content": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        }


def _errors(reply: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [error for error in reply.get("errors") or () if isinstance(error, Mapping)]


def _fields(reply: Mapping[str, Any], kind: str, value: object) -> list[str]:
    """Return the fields of an action with pydantic's error of a kind, and this value."""
    errors = [error for error in _errors(reply) if error.get("type") == kind and error.get("input") == value]
    places: list[list[Any]] = [error.get("loc") or [] for error in errors]
    return [str(place[0]) for place in places if len(place) == 1]


def _is_about(reply: Mapping[str, Any], action: Mapping[str, Any]) -> bool:
    """True if pydantic complains about an action, and not about a value that the environment made of it.

    >>> _is_about({"errors": [{"loc": ["text"], "input": "longer", "msg": "too long"}]}, {"text": "longer"})
    True
    >>> _is_about({"errors": [{"loc": ["n"], "input": "x", "msg": "not a number"}]}, {"text": "longer"})
    False
    """
    errors = _errors(reply)
    return not errors or any(
        (error.get("loc") or [None])[0] in action or error.get("input") == dict(action) for error in errors
    )


def _refusal(reply: Mapping[str, Any]) -> str:
    """Return why an action is not valid: the message, and pydantic's reason for each field.

    >>> _refusal({"message": "Invalid message", "errors": [{"loc": ["text"], "msg": "Field required", "input": {}}]})
    'Invalid message: text: Field required'
    """
    reasons = []
    for error in _errors(reply):
        place = ".".join(map(str, error.get("loc") or ()))
        reasons.append(f"{place}: {error.get('msg')}" if place else str(error.get("msg")))
    message = str(reply.get("message") or "not valid")
    details = "; ".join(reasons)
    return f"{message}: {details}" if details else message
