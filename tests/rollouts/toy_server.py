"""A small inference server that speaks the routes that ``VLLMServer`` needs and really samples, with faults on request.

``python -m tests.rollouts.toy_server --model FOLDER --uds PATH ...`` is the same as a process, with vLLM's options.
"""

from __future__ import annotations

import argparse
import base64
import copy
import dataclasses
import hashlib
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gspo_lightning.core.pictures import Media, Picture
from gspo_lightning.core.types import Prompt, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import hook_routers
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix
from tests.support.loopback import LoopbackServer

Reply = tuple[int, Any]
"""Status, and what is sent as JSON (bytes are sent as they are; None closes the connection without a word)."""
Fault = Callable[[str, dict[str, Any], Reply], Reply]
"""(route, body, honest reply) -> what is sent instead."""


@dataclass
class ToyServer(LoopbackServer):
    """Serves on a port, or on a socket file."""

    port: int = 0
    path: str | None = None
    """Of the socket; None listens on the port."""
    key: str | None = None
    """Asked for on every route."""
    refused: int = 0
    """Requests without it."""
    draws: Draws | None = None
    """The randomness of all answers; None: the seed of each request, or its number."""
    prompts: dict[tuple[tuple[int, ...], bytes], Prompt] = field(default_factory=dict)
    """Token ids and pixels of pictures (none: empty) -> prompts with their ids, for the draws; others have id 0."""
    fault: Fault | None = None
    tag: str = "default"
    loads: int = 0
    asked: int = 0
    """Completions asked for."""
    delay_s: float = 0.0
    """Before every answer, health checks included."""
    pace_s: float = 0.0
    """For every token of the longest response of a request."""
    meeting: threading.Barrier | None = None
    """Where paced requests wait for one another after their first token; None: nowhere."""
    holds: int | None = None
    """Tokens after which groups of responses wait for :meth:`release`; None: they never wait."""
    held: int = 0
    """Groups that wait, or have waited."""
    scale_out: bool = True
    """Whether the route that takes pictures is switched on."""
    max_pixels: int | None = None
    """Of its image processor; None: as the model's."""
    forgotten: int = 0
    """How often it was told to forget features of pictures."""
    lora: bool = False
    """Whether it takes adapters."""
    adapters: dict[str, Policy] = field(default_factory=dict)
    """By the name under which they are asked for."""
    received: list[int] = field(default_factory=list)
    """Bytes of weights that it has read, each time."""
    aborts: bool = True
    """Whether requests can be ended where they are."""
    aborted: set[str] = field(default_factory=set)
    connections: int = 0
    """That were opened."""
    paused: int = 0
    """How often it was paused."""
    forgets: bool = True
    """Whether it can forget what it has computed."""

    def __post_init__(self) -> None:
        self._policy: Policy | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._released = threading.Event()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        super().__exit__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.path is None else f"unix:{self.path}"

    def _listening(self) -> ThreadingHTTPServer:
        if self.path is not None:
            return _OnSocket(self.path, self._handler())  # type: ignore[arg-type]
        server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self.port = server.server_address[1]
        return server

    def release(self) -> None:
        """Let groups that are held, and all later ones, go on."""
        self._released.set()

    def load(self, folder: str) -> None:
        self._policy = load_policy(ModelSettings(folder)).eval()
        self._policy.routing = hook_routers(self._policy.backbone)
        self.loads += 1
        self.received.append(_weight_bytes(folder))

    def load_adapter(self, name: str, folder: str) -> None:
        """As PEFT itself reads it, beside the others."""
        from peft import PeftModel

        assert self._policy is not None
        policy = copy.deepcopy(self._policy)
        policy.model = PeftModel.from_pretrained(policy.model, folder).merge_and_unload()
        self.adapters[name] = policy
        self.received.append(_weight_bytes(folder))

    def answer(self, route: str, body: dict[str, Any]) -> Reply:
        if route == "/health":
            return 200, b""
        if route == "/v1/models":
            return 200, {"data": [{"id": name} for name in ("policy", *self.adapters)]}
        if route == "/weight_info":
            return 200, {"weight_version": self.tag}
        if route == "/update_weight_version":
            self.tag = body["new_version"]
            return 200, {"success": True}
        if route == "/pause?mode=keep&clear_cache=false":
            self.paused += 1
            self._going.clear()
            return 200, {"status": "paused"}
        if route == "/resume":
            self._going.set()
            return 200, {"status": "resumed"}
        if route == "/reset_prefix_cache?reset_running_requests=true":
            return 200, {"success": self.forgets}
        if route == "/collective_rpc":
            assert body["method"] == "reload_weights"
            assert not self._going.is_set()
            self.load(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        if route == "/v1/load_lora_adapter" and self.lora:
            self.load_adapter(body["lora_name"], body["lora_path"])
            return 200, b"Success"
        if route == "/v1/unload_lora_adapter" and self.lora:
            del self.adapters[body["lora_name"]]
            return 200, b"Success"
        if route == "/v1/completions" and body["model"] not in ("policy", *self.adapters):
            return 404, {"error": "The model does not exist."}
        if route == "/v1/completions":
            self.asked += 1
            return 200, {"choices": [self._echo(body)] if body.get("echo") else self._choices(body)}
        if route == "/inference/v1/generate":
            self.asked += 1
            return self._seen(body)
        if route == "/reset_encoder_cache":
            self.forgotten += 1
            return 200, b""
        if route == "/abort_requests" and self.aborts:
            self.aborted |= set(body["request_ids"])
            return 200, {"status": "aborted"}
        return 404, {"detail": "Not Found"}

    def _paced(self, body: dict[str, Any], reply: dict[str, Any], name: str) -> None:
        """As if tokens came one after another: what is aborted keeps those that have come, and where the weights are
        others after a pause, the rest is sampled from those."""
        choices, begun = reply["choices"], self.tag
        for choice in choices:
            choice["weight_versions"] = [{"version": begun, "start": 0, "end": len(choice["token_ids"])}]
        if not self.pace_s and self.holds is None:
            return
        count = 0
        while count < max(len(c["token_ids"]) for c in choices):
            if count == self.holds and len(choices) > 1:  # a probe has one choice
                with self._lock:
                    self.held += 1
                self._released.wait(20.0)
            self._going.wait(20.0)
            if self.tag != begun:
                begun = self.tag
                longer = [choice for choice in choices if len(choice["token_ids"]) > count]
                self._sample_rest(longer, reply["prompt_token_ids"], body["sampling_params"], count)
            if self.aborted & {f"cmpl-{name}-0", f"generate-tokens-{name}"}:
                for choice in choices:
                    if len(choice["token_ids"]) > count:
                        choice["token_ids"] = choice["token_ids"][:count]
                        form = next(iter(choice["logprobs"]))
                        choice["logprobs"][form] = choice["logprobs"][form][:count]
                        choice["finish_reason"] = "abort"
                return
            self._over.wait(self.pace_s)
            count += 1
            if count == 1 and self.meeting is not None:
                self.meeting.wait(60.0)

    def _sample_rest(self, choices: list[dict[str, Any]], prompt: list[int], asked: dict[str, Any], count: int) -> None:
        """All tokens from the ``count``-th on, from the weights of now."""
        assert self._policy is not None
        known = self.prompts.get((tuple(prompt), b""), Prompt(0, "", tuple(prompt)))
        rows = [
            ResponsePrefix(known, c["index"], (*prompt, *c["token_ids"][:count]), count, asked["max_tokens"] - count)
            for c in choices
        ]
        sampling = SamplingParams(1, asked["temperature"], stop_token_ids=tuple(asked["stop_token_ids"]))
        draws = self.draws or Draws(asked.get("seed", self.asked))
        with self._lock:
            found = GroupedSampler().extend(self._policy, rows, sampling=sampling, draws=draws)
        for choice, rest in zip(choices, found, strict=True):
            assert rest.logprobs is not None
            content = choice["logprobs"]["content"][:count]
            for token, logprob in zip(rest.token_ids.tolist(), rest.logprobs.tolist(), strict=True):
                content.append({"token_id": token, "logprob": logprob, "top_logprobs": []})
            spans = [span | {"end": min(span["end"], count)} for span in choice["weight_versions"]]
            spans.append({"version": self.tag, "start": count, "end": len(content)})
            choice |= {
                "token_ids": [token["token_id"] for token in content], "logprobs": {"content": content},
                "finish_reason": str(rest.finish_reason), "weight_versions": spans,
            }  # fmt: skip

    def _choices(self, body: dict[str, Any], media: Media = ()) -> list[dict[str, Any]]:
        policy = self.adapters.get(body["model"], self._policy)
        assert policy is not None
        text = body["prompt"]
        ids = tuple(policy.tokenizer(text)["input_ids"] if isinstance(text, str) else text)
        if policy.unsaid:
            assert body["logit_bias"] == {str(i): -10_000.0 for i in policy.unsaid}
        seen = policy.image_processor.pixels(media)[0].numpy().tobytes() if policy.image_processor and media else b""
        known = dataclasses.replace(self.prompts.get((ids, seen), Prompt(0, "", ids)), media=media)
        stops = (tuple(body.get("stop_token_ids", policy.eos_token_ids)), tuple(body.get("stop", ())))
        numbers = (body["max_tokens"], body.get("temperature", 1.0), body.get("top_p", 1.0), body.get("top_k", 0))
        sampling = SamplingParams(*numbers, *stops)
        with self._lock:
            (group,) = GroupedSampler().generate(
                policy,
                [known],
                group_size=body.get("n", 1),
                sampling=sampling,
                draws=self.draws or Draws(body.get("seed", self.asked)),
            )
        return [
            {
                "index": r.sample,
                "text": r.text,
                "token_ids": r.token_ids.tolist(),
                "prompt_token_ids": list(ids),
                "logprobs": {"token_logprobs": r.logprobs.tolist() if r.logprobs is not None else None},
                "finish_reason": str(r.finish_reason),
                "routed_experts": None if r.routes is None else _encoded(r.routes),
            }
            for r in group
        ]

    def _seen(self, body: dict[str, Any]) -> Reply:
        """Token ids with one placeholder a picture, widened by the server's own processor, as vLLM does."""
        assert self._policy is not None
        if not self.scale_out:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            return 403, {"error": {"message": message, "type": "PermissionDeniedError", "code": 403}}
        assert body["return_token_ids"] is True
        image_processor = self._policy.image_processor
        files = iter(base64.b64decode(part["url"].partition("base64,")[2]) for part in body.get("content_parts", []))
        ids: list[int] = []
        media: list[Picture] = []
        for token in body["token_ids"]:
            ids.append(token)
            if image_processor is not None and token == image_processor.image:
                data = next(files)
                with Image.open(io.BytesIO(data)) as image:
                    grid = image_processor.limited(self.max_pixels).grid(*image.size)
                media.append(Picture(data, hashlib.sha256(data).hexdigest(), len(ids) - 1, *grid))
                ids += [token] * (media[-1].tokens - 1)
        assert next(files, None) is None
        choices = self._choices(body["sampling_params"] | {"prompt": ids, "model": body["model"]}, tuple(media))
        for choice in choices:
            tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            if logprobs is not None:
                pairs = zip(tokens, logprobs, strict=True)
                choice["logprobs"] = {"content": [{"token_id": t, "logprob": p, "top_logprobs": []} for t, p in pairs]}
        places = [{"offset": picture.start, "length": picture.tokens} for picture in media]
        return 200, {
            "choices": choices, "prompt_token_ids": ids, "mm_placeholders": {"image": places} if places else None,
        }  # fmt: skip

    def _echo(self, body: dict[str, Any]) -> dict[str, Any]:
        """A prompt with its log-probabilities and nothing after it, as vLLM sends it."""
        assert self._policy is not None
        assert (body["max_tokens"], body["logprobs"], body["return_token_ids"]) == (0, 0, True)
        ids = body["prompt"]
        with self._lock, torch.no_grad():
            found = self._policy.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        logprobs = found[:-1].gather(1, torch.tensor(ids[1:], dtype=torch.int64).unsqueeze(1)).squeeze(1)
        tokens = [self._policy.tokenizer.decode([i]) for i in ids]
        known = {"tokens": tokens, "token_logprobs": [None, *logprobs.tolist()]}
        return {"index": 0, "text": "", "logprobs": known, "prompt_token_ids": ids, "token_ids": []}

    def _handler(toy) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def setup(self) -> None:
                toy.connections += 1
                super().setup()

            def do_GET(self) -> None:
                self._respond({})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self._respond(json.loads(self.rfile.read(length) or b"{}"))

            def _respond(self, body: dict[str, Any]) -> None:
                toy._over.wait(toy.delay_s)
                if toy.key is not None and self.headers.get("Authorization") != f"Bearer {toy.key}":
                    toy.refused += 1
                    status, content = 401, {"error": "Unauthorized"}
                else:
                    status, content = toy.answer(self.path, body)
                    if self.path in ("/v1/completions", "/inference/v1/generate") and status == 200:
                        toy._paced(body, content, self.headers.get("X-Request-Id", ""))
                if toy.fault is not None:
                    status, content = toy.fault(self.path, body, (status, content))
                if content is None:
                    self.close_connection = True
                    return
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked waits no longer
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

        return Handler


def _weight_bytes(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def _encoded(routes: Tensor) -> str:
    """As vLLM encodes arrays."""
    with io.BytesIO() as buffer:
        np.save(buffer, routes.numpy(), allow_pickle=False)
        return base64.b64encode(buffer.getvalue()).decode()


class _OnSocket(ThreadingHTTPServer):
    """The same on a socket file, which has no host and no port to look up."""

    address_family = socket.AF_UNIX
    server_bind = TCPServer.server_bind


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--uds")
    parser.add_argument("--load-format")
    options, _ = parser.parse_known_args(sys.argv[1:])
    with ToyServer(path=options.uds, key=os.environ["VLLM_API_KEY"]) as server:
        if options.load_format != "dummy":  # whose weights come later: the folder has none
            server.load(options.model)
        threading.Event().wait()
