"""Rollouts from vLLM servers, on this machine or elsewhere."""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import secrets
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gspo_lightning.core.distributed import all_gather_objects, fail_together, rank_and_world
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import FinishReason, Rollout, WeightsOn
from gspo_lightning.policy.numerics.autocast_weights import compute_dtype
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.gathering import leading
from gspo_lightning.policy.vision.qwen import QWEN
from gspo_lightning.rollouts.ending import cut
from gspo_lightning.rollouts.serving.answers import BadReplyError
from gspo_lightning.rollouts.serving.client import ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.pool import Faults, Server, Weights
from gspo_lightning.rollouts.serving.weight_version import run_of
from gspo_lightning.rollouts.serving.weights import WeightFolders
from gspo_lightning.rollouts.source import ContinuationRequest, GenerationRequest, ResponsePrefix, RolloutSource
from gspo_lightning.rollouts.vllm.gpus import card_of
from gspo_lightning.rollouts.vllm.local import LocalVLLM, check_in_flight, check_options
from gspo_lightning.rollouts.vllm.pictures import completed, shown_to
from gspo_lightning.rollouts.vllm.probe import WeightProbe
from gspo_lightning.rollouts.vllm.protocol import parse, request_body, seed_of, to_rollouts
from gspo_lightning.rollouts.vllm.servers import InflightRequests, Servers
from gspo_lightning.rollouts.vllm.weight_sync import WeightSync, deliver_elsewhere
from gspo_lightning.rollouts.vllm.weight_transport import TransportOrAuto

log = logging.getLogger(__name__)


class _OtherWeightsError(InfrastructureError):
    """Answers of a server from other weights than those it has taken."""


class VLLMServer(RolloutSource):
    """vLLM servers over HTTP, which get the new weights before every rollout.

    Servers are started here (one, on a socket file that only this user can access, with a random key) and end with the
    trainer, or are given by their URLs; the key of those is the environment variable ``VLLM_API_KEY``. Groups go to the
    least busy server; if one fails or hangs, its groups are requested elsewhere, and it is restarted
    or brought back. Replies are checked: no short groups, no responses to other prompts, no old weights.

    Args:
        urls: servers that are already running (``http://host:8000``, ``unix:/path``), started with
            ``VLLM_SERVER_DEV_MODE=1`` (routes that receive weights) and ``--logprobs-mode processed_logprobs``; None
            starts servers here.
        start: servers to start if no URLs are given.
        gpus: ``CUDA_VISIBLE_DEVICES`` of each started server; None deals GPUs that no rank uses. If there are none, a
            single server gets 0.4 of the memory of the first rank's GPU (``options: {gpu_memory_utilization: 0.4}``).
        python: interpreter of the environment that has vLLM; None is the trainer's own.
        host: address that started servers listen on, for ranks on other machines; None is a socket file. Anyone with a
            server's key can run code on it.
        plain_http: whether a key may go to another host unencrypted, on a network that nobody else can read.
        dtype: dtype of the weights in transfer, and on started servers; None is the compute dtype of training:
            bfloat16 with bf16-mixed.
        options: further options of started servers (``{gpu_memory_utilization: 0.4}``).
        environment: environment variables of started servers beside the trainer's; ``$NAME`` is the value of one.
        weights_dir: folder through which weights are sent, under the same path on every server; None is a
            temporary one on this machine.
        concurrency: groups that a server works on at a time; more wait here.
        timeout_s: seconds that a server with requests may be silent: it completes none, and its token counter
            (``GET /metrics``) stands still. A group may take as long as it needs. Also the time limit for a weight
            update.
        start_timeout_s: seconds until a started server must answer.
        health_every_s: seconds between two health checks of working servers.
        health_timeout_s: seconds that a health check may take.
        retries: attempts after the first for each group, elsewhere if there is another server.
        backoff_s: seconds before the first retry; doubled before each further one.
        tolerance: nats by which log-probabilities of a probe may differ from the trainer's, on average, after weights
            were sent; None is 1e-3 in float32, else 0.1.
        exact_seeds: send a seed with every group, so that a group that is requested again draws the same. On a CPU
            vLLM then draws for one response after another, in Python. False: servers draw from random numbers of their
            own. None: true if the first rank is on a GPU, where vLLM 0.32 draws every row from a counter anyway.
        weights_in_flight: with ``data.max_staleness`` give servers the newest weights while they sample: requests in
            flight are paused and continue with the new weights; each token reports the weights that sampled it. The
            samples then depend on timing.
        transfer: how weights reach servers. ``files``: through ``weights_dir``. ``ipc``: by a handle of GPU memory, to
            servers on the GPU of the only rank. ``nccl``: from GPU to GPU. ``auto``: the fastest possible one for
            servers that are started here; for others the one of their ``--weight-transfer-config``, else files.
        routed_experts: whether answers report the experts of a mixture that they were sampled with, for Routing Replay
            R3. Running servers need ``--enable-return-routed-experts``, which vLLM has on GPUs only.
    """

    reads_pictures = keeps_weights = True
    picture_families = QWEN

    def __init__(
        self,
        urls: list[str] | None = None,
        start: int = 1,
        gpus: list[str] | None = None,
        python: str | None = None,
        host: str | None = None,
        plain_http: bool = False,
        dtype: str | None = None,
        options: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        weights_dir: str | None = None,
        concurrency: int = 256,
        timeout_s: float = 600.0,
        start_timeout_s: float = 600.0,
        health_every_s: float = 5.0,
        health_timeout_s: float = 30.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        tolerance: float | None = None,
        exact_seeds: bool | None = None,
        routed_experts: bool = False,
        weights_in_flight: bool = False,
        transfer: TransportOrAuto = "auto",
    ) -> None:
        if urls is None and start < 1:
            raise UserError("data.rollouts.start", f"is {start}; it must be at least 1, or give urls")
        if gpus is not None and len(gpus) != start:
            raise UserError("data.rollouts.gpus", f"names {len(gpus)} devices for {start} servers", fix="one each")
        check_options(options or {}, environment or {})
        if weights_in_flight:
            check_in_flight(options or {}, routed_experts)
        self.dtype, self.records_routes, self.updates_in_flight = dtype, routed_experts, weights_in_flight
        started = ({"enable_return_routed_experts": True} if routed_experts else {}) | (options or {})
        self.servers = Servers(
            urls, start, LocalVLLM(python or sys.executable, gpus, dtype, started, dict(environment or {})), host,
            plain_http=plain_http, faults=Faults(retries, backoff_s, health_every_s, start_timeout_s, timeout_s),
            health_timeout_s=health_timeout_s, in_flight=weights_in_flight,
        )  # fmt: skip
        self.concurrency, self.tolerance, self.exact_seeds = concurrency, tolerance, exact_seeds
        self.health_timeout_s, self.transfer = health_timeout_s, transfer
        folders = WeightFolders(weights_dir, in_memory=urls is None)
        self.weight_sync = WeightSync(folders, secrets.token_hex(4), timeout_s, in_flight=weights_in_flight)
        self._newest: tuple[Policy, int] | None = None
        self._held: tuple[Policy, int, Weights] | None = None
        self._giving = threading.Lock()
        self._synced: tuple[weakref.ref[Policy], int] | None = None
        self._met = False

    # life --------------------------------------------------------------------------------------------------------

    def open(self, longest: int) -> None:
        """Check that vLLM is installed, or that a server answers."""
        self.servers.longest = max(self.servers.longest, longest)
        self.servers.look(self.weight_sync.deliver)

    def close(self) -> None:
        """End servers that were started here, and forget the weights."""
        self.servers.close()
        self._synced = self._newest = self._held = None
        self.weight_sync.close()

    # weights -----------------------------------------------------------------------------------------------------

    @property
    def weights_on(self) -> WeightsOn:
        """Rank 0 sends the weights as they are gathered; other ranks give their shards, and send requests."""
        return WeightsOn.STREAMED

    def sync_weights(self, policy: Policy, version: int) -> None:
        """Send rank 0's weights to every server; a probe verifies that they arrived.

        Raises:
            InfrastructureError: no server took them.
            UserError: a server cannot do what is needed, or serves another model.
        """
        known = self._synced is not None and self._synced[0]() is policy and self._synced[1] == version
        # barrier: a rank may still sample with the current weights
        ranks = all_gather_objects((known, card_of(policy)))
        if all(same for same, _ in ranks):
            self.weight_sync.hold(policy)
            return
        self.servers.cards = [card for _, card in ranks]
        self._synced = None
        shared: list[Any] = [None]
        with fail_together(), leading(policy) as leads:
            if leads:
                shared = [self._give(policy, version)]
        endpoints, weights = all_gather_objects(shared[0])[0]
        with fail_together():  # a retry needs the first rank
            if rank_and_world()[0] != 0:
                if not self.servers.met:  # files may hold older weights than those in flight
                    self.servers.connect(endpoints, None if self.updates_in_flight else deliver_elsewhere)
                self.servers.loop.run(self.servers.pool.sync(weights))
        self._synced = (weakref.ref(policy), version)

    def update_weights_in_flight(self, policy: Policy, version: int) -> None:
        """Send weights to servers, which pause, take them, and continue their requests.

        Only the first rank sends: the others learn from the answers which weights sampled which token.

        Raises:
            InfrastructureError: a server continues with other weights than those that it reports.
        """
        if not self.servers.met:
            return
        with leading(policy) as leads:
            try:
                if leads:
                    self._newest = policy, version
                    self._give(policy, version)
            except _OtherWeightsError:
                raise
            except InfrastructureError as error:
                log.warning("weights %d were not given to requests in flight: %s", version, error)

    def _give(self, policy: Policy, version: int) -> tuple[list[Endpoint], Weights]:
        """Send weights from the first rank to all servers; never older ones than requests in flight have."""
        with self._giving:
            if self._newest is not None and self._newest[1] > version:
                policy, version = self._newest
            elif self._newest is not None and self._newest[1] < version:
                self._newest = None  # rollouts arrive in the order of their versions
            if self._held is not None and self._held[0] is policy and self._held[1] == version:
                weights = self._held[2]
                self.weight_sync.hold(policy)
                self.servers.loop.run(self.servers.pool.sync(weights))
            else:
                self._held = None
                try:
                    weights = self._give_these(policy, version)
                except OSError as error:  # no room for the files; all ranks raise an error of ours
                    raise InfrastructureError(f"weights could not be handed over: {error}") from error
                self._held = (policy, version, weights) if self.updates_in_flight else None
            return [server.client.endpoint for server in self.servers.pool.servers], weights

    def _give_these(self, policy: Policy, version: int) -> Weights:
        probe = WeightProbe(policy, self.tolerance, self.dtype)
        servers, dtype = self.servers, self._dtype_of(policy)
        servers.longest = max(servers.longest, probe.length) if servers.longest else 0
        if not servers.met:
            servers.connect(None, self.weight_sync.deliver)
        try:
            weights, ready = servers.sync(self.weight_sync, policy, dtype, version, self.transfer)
            run = self.weight_sync.run if self.updates_in_flight else None
            answers = [servers.loop.run(probe.ask(server, run)) for server in ready]
            probe.check([server.client.url for server in ready], answers)
        except (ServerError, UnsupportedError, BadReplyError, UserError) as error:
            for server in servers.pool.servers:
                server.ready = False
            if self._met or isinstance(error, ServerError):  # transient: it worked before
                kind = _OtherWeightsError if isinstance(error, UserError) else InfrastructureError
                raise kind(f"a server failed while weights were being copied: {error}") from error
            if isinstance(error, UserError):
                raise
            raise UserError("data.rollouts", f"cannot be used for training: {error}", fix=_FIX) from error
        self._met = True
        self.weight_sync.keep(weights)
        return weights

    def _dtype_of(self, policy: Policy) -> torch.dtype:
        """Return the dtype of the weight files, and of the weights on local servers."""
        return compute_dtype(policy) if self.dtype in (None, "auto") else getattr(torch, str(self.dtype))

    def measured(self) -> dict[str, float]:
        """Return the time that servers waited for this rank: the smallest share over ranks bounds their idle time."""
        return {"throughput/server_idle_share": self.servers.pool.idle_share() if self.servers.met else 1.0}

    # sampling ----------------------------------------------------------------------------------------------------

    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        """Generate groups with the weights of the last :meth:`sync_weights`.

        Raises:
            InfrastructureError: servers failed more often than ``retries`` allows.
            UserError: a server reads a picture as other tokens than the trainer.
        """
        rows = [
            ResponsePrefix(p, 0, p.token_ids, 0, p.token_budget(request.sampling.max_response_tokens))
            for p in request.prompts
        ]
        groups: dict[int, list[Rollout]] = {}
        for i, group in self._answers(request.begin(rows), range(request.group_size)):
            groups[i] = group
            if self.on_group is not None:
                self.on_group(group)
            if request.progress is not None:
                request.progress(len(groups) * request.group_size, request.size)
        return [groups[i] for i in range(len(request.prompts))]

    @called_with(ContinuationRequest)
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        """Continue responses; draws of servers differ between a whole response and its pieces.

        Responses cut by ``enough`` keep their tokens, if their server answers in time.

        Raises:
            InfrastructureError: servers failed more often than ``retries`` allows.
        """
        pieces: dict[int, Rollout] = {}
        ended: set[int] = set()
        inflight = InflightRequests()
        for i, (piece,) in self._answers(request, inflight=inflight):
            pieces[i] = piece
            if piece.finish_reason is not FinishReason.CUT:
                ended.add(i)
            if request.enough is not None and not inflight.over and request.enough(ended):
                inflight.over = True
                self.servers.loop.submit(inflight.end(self.health_timeout_s))
        return [pieces.get(i) or cut(row, request.version) for i, row in enumerate(request.beginnings)]

    def _answers(
        self,
        request: ContinuationRequest,
        samples: Sequence[int] | None = None,
        inflight: InflightRequests | None = None,
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """Yield (index of the row, its rollouts) as they arrive; closing the iterator cancels the rest.

        Args:
            request: a row for each response, or for each prompt with several.
            samples: numbers of the responses to each prompt; None: each row's own.
            inflight: requests that the caller may end.
        """
        policy = request.policy
        sampling = request.sampling
        requests = InflightRequests() if inflight is None else inflight
        if self._synced is None or self._synced[1] != request.version:
            raise RuntimeError(f"version {request.version} was not copied by sync_weights()")
        vocabulary = int(policy.model.config.get_text_config().vocab_size)
        routing = policy.routing if self.records_routes else None
        weights = self.servers.pool.weights
        run = run_of(weights.tag) if self.updates_in_flight and weights is not None else None
        seeded = self.servers.on_gpus if self.exact_seeds is None else self.exact_seeds

        async def ask(row: ResponsePrefix, server: Server) -> list[Rollout]:
            if requests.over:
                return []
            numbers = [row.sample] if samples is None else samples
            seed = seed_of(request.draws, row) if seeded else None
            body = request_body(server.model, row, len(numbers), sampling, seed, policy.unsaid)
            with requests.named(server.client) as name:
                media = row.prompt.media
                reply = await completed(
                    server.client, body, media, shown_to(policy), versions=self.updates_in_flight, patiently=True,
                    name=name,
                )  # fmt: skip
            answers = parse(reply, body, vocabulary, routing, run)
            return to_rollouts(answers, row, numbers, sampling, request.version, policy)

        done: queue.SimpleQueue[tuple[int, list[Rollout]] | None] = queue.SimpleQueue()
        future = self.servers.loop.submit(self._all(request.beginnings, ask, done))
        try:
            while (item := done.get()) is not None:
                yield item
            future.result()
        finally:
            future.cancel()

    async def _all(self, rows: Sequence[ResponsePrefix], ask: Any, done: queue.SimpleQueue[Any]) -> None:
        pool = self.servers.pool
        slots = asyncio.Semaphore(self.concurrency * len(pool.servers))

        async def one(i: int, row: ResponsePrefix) -> None:
            async with slots:
                if found := await pool.ask(functools.partial(ask, row)):
                    done.put((i, found))

        watch = asyncio.ensure_future(pool.watch())
        try:
            async with asyncio.TaskGroup() as group:
                for i, row in enumerate(rows):
                    group.create_task(one(i, row))
            await pool.check_weights()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            watch.cancel()
            done.put(None)


_FIX = (
    "vLLM started with VLLM_SERVER_DEV_MODE=1 and --logprobs-mode processed_logprobs; or leave urls out: one is "
    "started here"
)
