"""An environment of OpenEnv behind its own server: guess the number of ``GuessTask``.

Arguments: how many conversations there may be at a time (256 if it is left out), and the port.

Runs in the environment of OpenEnv.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, field_validator

ENDS = {"nan": math.nan, "inf": math.inf, "none": None, "zero": 0.0, "yes": True}
"""Rewards of conversations that end with these words."""


class Guess(Action):
    """A number, as text."""

    text: str = Field(max_length=8)

    @field_validator("text")
    @classmethod
    def not_empty(cls, text: str) -> str:
        """Refuse what a constraint cannot name."""
        if text == "blank":
            raise ValueError("is blank")
        return text


class Hint(Observation):
    """Smaller or larger."""

    hint: str | None = ""
    seen: list[str] = Field(default_factory=list)


class Numbers(Environment):  # type: ignore[misc]
    """Says "<" or ">" until the number is found, five times at most."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.number, self.count = 0, 0

    def reset(self, seed: int | None = None, answer: int = 0, **_: Any) -> Hint:
        """Begin; the seed is the number where no answer is given."""
        self.number, self.count = int(answer or seed or 0), 0
        return Hint(hint="?", done=False, reward=0.0)

    def step(self, action: Guess) -> Hint:  # type: ignore[override]
        """Answer a guess."""
        self.count += 1
        if action.text == "crash":
            raise RuntimeError("out of numbers")
        if action.text in ENDS:
            return Hint(hint="!", done=True, reward=ENDS[action.text])
        if action.text == "quiet":
            return Hint(hint=None, done=True, reward=1.0)
        if action.text == "mistaken":
            return Hint(seen=action.text)
        if action.text == "größer":
            return Hint(hint=">", seen=[action.text], reward=None)
        found = action.text.isdigit() and int(action.text) == self.number
        less = action.text.isdigit() and int(action.text) > self.number
        return Hint(hint="<" if less else ">", done=found or self.count == 5, reward=float(found))

    @property
    def state(self) -> State:
        """How many guesses there were."""
        return State(episode_id="one", step_count=self.count)


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 2 else 256
    app = create_fastapi_app(Numbers, Guess, Hint, max_concurrent_envs=most)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[-1]), log_level="error")
