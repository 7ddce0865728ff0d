#!/usr/bin/env bash
# A mistake of an OpenEnv environment reads as one of the policy: an invalid value inside its step is an "Invalid message".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check openenv==0.10.0 httpx==0.28.1
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import version

from fastapi.testclient import TestClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    text: str = Field(max_length=8)


class Hint(Observation):
    distance: int = 0


class Numbers(Environment):
    def reset(self, seed=None, **_):
        return Hint()

    def step(self, action):
        if action.text == "a half":  # the environment's mistake: half a step is no int
            return Hint(distance=0.5)
        if action.text == "other":
            raise RuntimeError("the environment's mistake")
        return Hint(distance=int(action.text), reward=1.0, done=True)

    @property
    def state(self):
        return State(episode_id="1", step_count=0)


print("openenv", version("openenv"), "- an action may have 8 characters; what a step answers:")
codes = {}
with TestClient(create_fastapi_app(Numbers, Guess, Hint)) as client, client.websocket_connect("/ws") as socket:
    socket.send_json({"type": "reset", "data": {}})
    socket.receive_json()
    for text in ("123456789", "a half", "other", "7"):
        socket.send_json({"type": "step", "data": {"text": text}})
        data = socket.receive_json()["data"]
        codes[text] = data.get("code", "an observation")
        print(f"{text!r:12} {codes[text]}: {data.get('message', data.get('observation'))}")
described = ["VALIDATION_ERROR", "VALIDATION_ERROR", "EXECUTION_ERROR", "an observation"]
sys.exit(list(codes.values()) != described)
PROGRAM
venv/bin/python -W ignore program.py
