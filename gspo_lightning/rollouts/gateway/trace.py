"""Tree of the messages of one rollout, as the token ids that were served.

Nodes alternate. A *given* node holds all messages between two turns of the policy, as the tokens that were rendered
for them; a *turn* holds the tokens that the policy sampled. A request continues the longest path that its history
matches, and only what is new is rendered. History that matches no path begins a new root: nothing that was sampled is
ever rendered again, or patched.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from gspo_lightning.core.rows import SampledRow
from gspo_lightning.rollouts.gateway.bounds import load, weight

Message = Mapping[str, Any]
"""A chat message in OpenAI's shape: role, content (text, parts or None), tool_calls, tool_call_id, name."""
Match = Literal["exact", "strip"]
"""Comparison of texts: as they are, or without outer white space."""
Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Canonical key of a message: role, text, and calls as (name, arguments)."""
Place = tuple[int, "Node"]
"""Node that a request continues or repeats, behind the number of messages up to it."""
REASONS = ("first", "fresh", "tools", "system", "answer", "input", "shortened")
"""Reasons for a new root, see :meth:`Trace.locate`."""

_ROLES = {"developer": "system", "function": "tool"}


class Encoder(Protocol):
    """Encoder of messages as token ids."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Message]) -> Sequence[int]:
        """Return the token ids of the first request of a conversation."""

    def reply(
        self, messages: Sequence[Message], last: int, tools: Sequence[Message], calls: Sequence[Message]
    ) -> Sequence[int]:
        """Return the token ids from the end of a turn, whose last token was ``last``, to the next one.

        ``calls`` are the tool calls of the turn that has ended.
        """


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """Tokens that a sampler added to a context.

    Args:
        token_ids: at least one.
        logprobs: of each token under the weights that sampled it, in nats.
        truncated: True if the token budget ended it.
        version: optimizer steps of these weights.
        versions: the same for each token, if they differ.
        routes: experts of context and tokens, if recorded.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    truncated: bool = False
    version: int = 0
    versions: tuple[int, ...] = ()
    routes: Any = None


@dataclass(slots=True, eq=False)
class Node:
    """Messages that follow one another, and the tokens they added; ``sampled`` makes it a turn of the policy."""

    parent: Node | None
    messages: tuple[Message, ...]
    keys: tuple[Key, ...]
    token_ids: tuple[int, ...]
    tools: str = "[]"
    sampled: SampledTurn | None = None
    order: int = 0
    heard: int = 1
    """Clients that got the answer; a turn that none got, and none continued, is not trained."""
    asked_s: float = 0.0
    """Seconds from the beginning of the session to the request."""
    answered_s: float = 0.0
    reward: float = 0.0
    children: list[Node] = field(default_factory=list)
    end: int = 0

    @property
    def path(self) -> list[Node]:
        """All nodes from the root to this one."""
        path = [self]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        return path[::-1]

    @property
    def root(self) -> Node:
        """First node of the path."""
        return self.path[0]


@dataclass(frozen=True, slots=True, eq=False)
class TracedRow(SampledRow):
    """Row to train on: the path to a leaf, from the first turn that no earlier row trains."""

    turns: tuple[tuple[int, Node], ...] = ()
    """Trained turns, with the position in ``token_ids`` after each."""


@dataclass(frozen=True, slots=True)
class History:
    """A request as the tree compares it.

    Args:
        messages: in OpenAI's shape.
        tools: JSON schemas.
        keys: of the messages.
        tools_key: canonical text of the tools.
        weights: characters of each message.
        tools_weight: characters of the tools.
    """

    messages: Sequence[Message]
    tools: Sequence[Message]
    keys: tuple[Key, ...]
    tools_key: str
    weights: tuple[int, ...]
    tools_weight: int

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Sequence[Message], match: Match) -> History:
        """Return a request; takes time that grows with its texts."""
        keys = tuple(key_of(m, match) for m in messages)
        return cls(messages, tools, keys, canonical(tools), tuple(map(weight, messages)), weight(tools))

    def new(self, place: Place | None) -> int:
        """Return the characters of messages behind a place, and of tools that are new there."""
        return sum(self.weights[place[0] :]) if place else sum(self.weights) + self.tools_weight


class TraceError(AssertionError):
    """Served tokens that differ from the tree: a defect of the gateway, which stops the run."""


class Trace:
    """Tree of one rollout.

    Args:
        encoder: renders what is new.
        match: comparison of texts.
    """

    def __init__(self, encoder: Encoder, match: Match = "exact") -> None:
        self.encoder = encoder
        self.match = match
        self.roots: list[Node] = []
        self.turns: list[Node] = []
        self.reasons: Counter[str] = Counter()

    def locate(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> Node:
        """Return the given node that a request ends with; rendered now, unless the request was made before.

        A new root has a reason, counted in :attr:`reasons`: ``first``; ``fresh``, a conversation without a turn of the
        policy; ``tools``, other tools after the same history; or the role of the first message that differs from the
        nearest path: ``system``, ``answer`` (the policy's turn was rewritten) or ``input``; ``shortened``, if none
        differs and some are missing.
        """
        history = History.of(messages, tools, self.match)
        place = self.nearest(history)
        return self.attach(history, place, self.rendered(history, place))

    def rendered(self, history: History, place: Place | None) -> tuple[int, ...]:
        """Return the tokens of what is new behind a place; changes nothing, so that another thread may do it."""
        if place is None:
            return tuple(self.encoder.opening(history.messages, history.tools))
        taken, node = place
        if node.sampled is None:
            return ()
        calls = node.messages[0].get("tool_calls") or ()
        return tuple(self.encoder.reply(history.messages[taken:], node.token_ids[-1], history.tools, calls))

    def attach(self, history: History, place: Place | None, ids: tuple[int, ...]) -> Node:
        """Return the given node of a request, added behind its place unless an equal request has just added it."""
        taken, parent = place or (0, None)
        if parent is not None and parent.sampled is None:
            return parent
        keys = history.keys[taken:]
        siblings = self.roots if parent is None else parent.children
        for node in siblings:
            if node.sampled is None and node.keys == keys and node.tools == history.tools_key:
                return node
        if parent is None:
            self.reasons[self._reason(history.keys, history.tools_key)] += 1
        node = Node(parent, tuple(history.messages[taken:]), keys, ids, history.tools_key)
        node.end = len(ids) + (0 if parent is None else parent.end)
        siblings.append(node)
        return node

    def nearest(self, history: History) -> Place | None:
        """Return the node that a request continues or repeats, and the number of messages up to it."""
        keys = history.keys
        places: list[Place] = []
        for root in self.roots:
            if root.tools != history.tools_key:
                continue
            for taken, node in _ends(root, history.messages, keys, 0):
                only_new = all(role != "assistant" for role, _, _ in keys[taken:])
                if (node.sampled or taken == len(keys)) and only_new:
                    places.append((taken, node))
        return max(places, key=lambda place: (place[0], place[1].sampled is None, place[1].order), default=None)

    def add_turn(
        self, given: Node, context: Sequence[int], sampled: SampledTurn, message: Message, key: Key | None = None
    ) -> Node:
        """Append a turn that the policy sampled after a given node, and check what was served.

        Args:
            given: the node from :meth:`locate`.
            context: token ids that were served to the policy.
            sampled: what it sampled.
            message: the answer as the client got it.
            key: of the message, if it is known.

        Raises:
            TraceError: the tokens of the path are not those that were served.
        """
        key = key or key_of(message, self.match)
        count = len(sampled.token_ids)
        turn = Node(given, (message,), (key,), sampled.token_ids, given.tools, sampled, len(self.turns))
        turn.end = given.end + count
        logprobs = sampled.token_ids if sampled.logprobs is None else sampled.logprobs
        lengths = {count, len(logprobs), len(sampled.versions or sampled.token_ids)}
        if len(lengths) > 1 or turn.end != len(context) + count:
            raise TraceError(f"{len(context)} + {count} tokens were served, the tree has {turn.end}")
        if ids_of(turn.path) != (*context, *sampled.token_ids):
            raise TraceError("the tokens of the tree are not those that were served")
        given.children.append(turn)
        self.turns.append(turn)
        return turn

    def trained(self) -> list[Node]:
        """Return the turns to train on, in the order of sampling.

        A conversation without tools beside one with tools (a title, a summary for people) is left out. Of several
        answers to one request, those that were never continued are left out if another one was. A summary that
        compacts the history is trained like any turn (CompactionRL, arXiv 2607.05378). An answer that no client got is
        left out: the reward belongs to what was said in its place.
        """
        with_tools = any(turn.root.tools != "[]" for turn in self.turns)
        trained: list[Node] = []
        for turn in self.turns:
            beside = with_tools and turn.root.tools == "[]"
            if (turn.heard or turn.children) and not beside and not _passed_over(turn):
                trained.append(turn)
        return trained

    def nodes(self) -> list[Node]:
        """Return all nodes, parents before children."""
        nodes: list[Node] = []
        stack = self.roots[::-1]
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack += node.children[::-1]
        return nodes

    def rows(self) -> list[TracedRow]:
        """Return a row for every leaf; a turn on several paths is trained in the first of them, and context after."""
        kept = self.trained()
        inner = {id(node) for turn in kept for node in turn.path[:-1]}
        claimed: set[int] = set()
        rows: list[TracedRow] = []
        for leaf in (turn for turn in kept if id(turn) not in inner):
            path = leaf.path
            first = next(i for i, node in enumerate(path) if node.sampled is not None and id(node) not in claimed)
            claimed |= {id(node) for node in path}
            rows.append(_row(path, first))
        return rows

    def _reason(self, keys: Sequence[Key], tools: str) -> str:
        if not self.roots:
            return "first"
        if all(key[0] != "assistant" for key in keys):
            return "fresh"
        paths = [([key for node in turn.path for key in node.keys], turn.tools) for turn in self.turns]
        paths += [(list(root.keys), root.tools) for root in self.roots]
        path, other = max(paths, key=lambda candidate: (_common(candidate[0], keys), candidate[1] == tools))
        same = _common(path, keys)
        if same in (len(keys), len(path)) and other != tools:
            return "tools"
        if same == len(keys):
            return "shortened"
        role = "assistant" if same == len(path) and path[-1][0] == "assistant" else keys[same][0]
        return {"assistant": "answer", "system": "system"}.get(role, "input")


def key_of(message: Message, match: Match = "exact") -> Key:
    """Return the canonical key of a message: parts joined, arguments parsed, without ids and reasoning.

    >>> key_of({"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [
    ...     {"id": "1", "function": {"name": "add", "arguments": '{"b":7 , "a": 6}'}}]})
    ('assistant', 'a', (('add', '{"a":6,"b":7}'),))
    >>> key_of({"role": "developer", "content": None})
    ('system', '', ())
    """
    text = text_of(message.get("content"))
    calls = tuple(
        (str(call["function"].get("name", "")), _arguments(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    )
    role = str(message.get("role"))
    return _ROLES.get(role, role), text.strip() if match == "strip" else text, calls


def text_of(content: Any) -> str:
    """Return the text of a message's content: a text, text parts joined, or '' for None."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def canonical(value: Any) -> str:
    """Return JSON that does not depend on the order of fields or on white space."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=list)


def ids_of(path: Sequence[Node]) -> tuple[int, ...]:
    """Return the token ids of nodes, one after another."""
    return tuple(i for node in path for i in node.token_ids)


def _arguments(value: Any) -> str:
    if not isinstance(value, str):
        return canonical({} if value is None else value)
    try:
        return canonical(load(value or "{}"))
    except (ValueError, RecursionError):
        return value


def _ends(node: Node, messages: Sequence[Message], keys: Sequence[Key], start: int) -> Iterator[tuple[int, Node]]:
    """Yield the nodes that the history reaches below ``node``, with the number of messages behind each."""
    end = start + len(node.keys)
    if tuple(keys[start:end]) != node.keys or (node.sampled and not _same_reasoning(node, messages[start])):
        return
    yield end, node
    for child in node.children:
        yield from _ends(child, messages, keys, end)


def _same_reasoning(turn: Node, message: Message) -> bool:
    """True unless both sides have reasoning that differs."""
    sampled = turn.messages[0].get("reasoning_content")
    sent_back = message.get("reasoning_content")
    return not sampled or not sent_back or sampled == sent_back


def _passed_over(turn: Node) -> bool:
    assert turn.parent is not None
    return not turn.children and any(other.children for other in turn.parent.children)


def _common(a: Sequence[Key], b: Sequence[Key]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _row(path: Sequence[Node], first: int) -> TracedRow:
    """Return the row of a path whose nodes from ``first``, a turn, on are its tokens."""
    turns: list[tuple[int, Node]] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    all_have_logprobs = True
    for node in path[first:]:
        sampled = node.sampled
        count = len(node.token_ids)
        mask += [sampled is not None] * count
        if sampled is None:
            logprobs += [0.0] * count
            versions += [versions[-1]] * count
            continue
        logprobs += sampled.logprobs or ()
        all_have_logprobs = all_have_logprobs and sampled.logprobs is not None
        versions += sampled.versions or [sampled.version] * count
        turns.append((len(mask), node))
    leaf = path[-1].sampled
    return TracedRow(
        context=ids_of(path[:first]),
        token_ids=torch.tensor(ids_of(path[first:]), dtype=torch.int64),
        response_mask=torch.tensor(mask, dtype=torch.bool),
        logprobs=torch.tensor(logprobs, dtype=torch.float32) if all_have_logprobs else None,
        versions=torch.tensor(versions, dtype=torch.int64),
        routes=None if leaf is None else leaf.routes,
        turns=tuple(turns),
    )
