"""Memory of decoding: keys and values, and the decoder that a GPU keeps."""

from __future__ import annotations

from transformers import PretrainedConfig

from gspo_lightning.commands.plan.devices import Device
from gspo_lightning.commands.plan.job import Job
from gspo_lightning.commands.plan.models import config_of
from gspo_lightning.policy.attention.kv_cache_size import kv_cache_size
from gspo_lightning.rollouts.sampler.fast_decoder import may_be_copied
from gspo_lightning.rollouts.sampler.memory import Costs, Growth


def keeps_decoder(job: Job, device: Device) -> bool:
    """True if a copy of the weights for decoding stays on a GPU for the run, and rows get all their places at once."""
    plain = job.packed and not job.lockstep and job.strategy != "fsdp" and (job.lora is None or job.lora.base != "4bit")
    return plain and not device.cpu and job.compute_bytes == 2 and may_be_copied(config_of(job.model))


def growth_of(job: Job, device: Device) -> Growth:
    """Return how rows get places on a device."""
    if device.cpu:
        return "pages"
    return "whole" if keeps_decoder(job, device) else "graph pages"


def kv_itemsize(job: Job, device: Device) -> int:
    """Return the bytes per number of keys and values: under autocast a CPU attends in float32."""
    return 4 if device.cpu and job.autocast else job.compute_bytes


def kv_bytes(
    job: Job, config: PretrainedConfig, rows: int, growth: Growth = "pages", itemsize: int | None = None
) -> int:
    """Return the KV-cache bytes of ``rows`` responses and their prompts, including the copy while a layer grows.

    Args:
        job: the run.
        config: of the text model.
        rows: number of responses.
        growth: how rows get places.
        itemsize: bytes per number (:func:`kv_itemsize`); None: those of the job's products.
    """
    itemsize = itemsize or job.compute_bytes
    cache = kv_cache_size(config, itemsize)
    if not job.packed:
        return rows * (cache.row(job.longest) + cache.largest_layer * job.longest)
    prompt_places = -(-rows // job.group_size) * job.max_prompt  # a group shares its prompt's
    places = Costs(config, itemsize, True, job.max_prompt, growth=growth).places(job.max_response)
    return (cache.token + cache.largest_layer) * (prompt_places + rows * places)
