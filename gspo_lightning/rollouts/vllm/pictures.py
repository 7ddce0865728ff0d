"""Pictures in requests to vLLM: send token ids with one placeholder per picture, and check the tokens that vLLM read.

vLLM expands a placeholder to the tokens of its picture with an image processor of its own. Pictures are therefore sent
lossless, as RGB at the size that matches the trainer's tokens, which leaves nothing to scale. The prompt that vLLM has
read is compared with the trainer's, token by token.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.pictures import Media, Picture
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.qwen import QwenImageProcessor
from gspo_lightning.rollouts.serving.answers import BadReplyError, shown
from gspo_lightning.rollouts.serving.client import Client

if TYPE_CHECKING:
    from PIL.Image import Image

NOT_SAMPLING = ("model", "prompt", "return_token_ids")
"""Keys of a request to ``/v1/completions`` that are no sampling parameters."""
_KEPT = 64
"""Number of cached encoded pictures: the responses to a prompt may be requested one by one."""


def shown_to(policy: Policy) -> QwenImageProcessor | None:
    """Return the adapter of pictures sent to vLLM; None for text-only policies and unsupported families."""
    return policy.image_processor if isinstance(policy.image_processor, QwenImageProcessor) else None


async def completed(
    client: Client,
    body: Mapping[str, Any],
    media: Media,
    image_processor: QwenImageProcessor | None,
    *,
    versions: bool = False,
    patiently: bool = False,
    name: str | None = None,
) -> Any:
    """Send a request for completions, through the route that takes pictures if the policy reads them; return the reply.

    Only ``POST /inference/v1/generate`` takes token ids and pictures together and reports the tokens it
    read, and only it reports which weights sampled a token.

    Args:
        client: connection to the server.
        body: body of ``POST /v1/completions``, as :func:`~gspo_lightning.rollouts.vllm.protocol.request_body` makes it.
        media: the pictures of its prompt.
        image_processor: by :func:`shown_to`.
        versions: True if the reply must report which weights sampled each token.
        patiently: see :meth:`Client.complete`.
        name: see :meth:`Client.complete`.

    Raises:
        UserError: the server made other tokens of the pictures than the trainer did.
        BadReplyError: the reply does not match the request.
    """
    if image_processor is None:
        _refuse(media)
        if not versions:
            return await client.complete(dict(body), patiently=patiently, name=name)
    asked = await asyncio.to_thread(_seeing, body, media, image_processor)  # decodes and encodes pictures
    reply = await client.generate(asked, patiently=patiently, name=name)
    if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
        raise BadReplyError(f"it sent no choices: {shown(reply)}")
    if image_processor is None:
        _check_text(reply.get("prompt_token_ids"), body["prompt"])
    else:
        check_read(client.url, reply.get("prompt_token_ids"), body["prompt"], media, image_processor)
        _check_places(reply.get("mm_placeholders"), media)
    return {"choices": [_completion(choice) for choice in reply["choices"]]}


def engine_prompt(body: Mapping[str, Any], media: Media, image_processor: QwenImageProcessor | None) -> dict[str, Any]:
    """Return the same prompt in the form of an engine in this process."""
    if image_processor is None:
        _refuse(media)
    if image_processor is None or not media:
        return {"prompt_token_ids": body["prompt"]}
    images = [_image(picture, image_processor) for picture in media]
    return {"prompt_token_ids": _narrowed(body["prompt"], media), "multi_modal_data": {"image": images}}


def check_read(who: str, read: Any, sent: Sequence[int], media: Media, image_processor: QwenImageProcessor) -> None:
    """Check that the prompt vLLM has read is the trainer's.

    Args:
        who: name of the reader, for messages.
        read: its token ids, pictures expanded.
        sent: the trainer's token ids.
        media: the pictures of the prompt.
        image_processor: the policy's picture adapter.

    Raises:
        UserError: it made other tokens of the pictures.
        BadReplyError: it does not report what it read, or read other text.
    """
    if not isinstance(read, list | tuple):
        raise BadReplyError(f"it does not say which tokens it read (prompt_token_ids: {shown(read)})")
    if list(read) == list(sent):
        return
    theirs, ours = sum(token == image_processor.image for token in read), sum(picture.tokens for picture in media)
    if theirs == ours:
        raise BadReplyError("it read another prompt than it was sent")
    pixels = [picture.tokens * image_processor.token_pixels**2 for picture in media]
    size = image_processor.processor.size
    low, high = min([*pixels, int(size["shortest_edge"])]), max([*pixels, int(size["longest_edge"])])
    raise UserError(
        "data.rollouts",
        f"{who} made {theirs} tokens of the pictures of a prompt, the trainer {ours}: its image processor has other "
        "limits",
        fix=f'start it with --mm-processor-kwargs \'{{"min_pixels": {low}, "max_pixels": {high}}}\' (in '
        "data.rollouts.options: mm_processor_kwargs), or change data.pictures.max_pixels",
    )


def _check_text(read: Any, sent: Sequence[int]) -> None:
    if read != list(sent):
        raise BadReplyError(f"it read another prompt than it was sent (prompt_token_ids: {shown(read)})")


def _refuse(media: Media) -> None:
    if media:
        what = "vLLM would be asked about a picture, and pictures are sent to it for Qwen2.5-VL and Qwen3-VL only"
        raise UserError("data.rollouts", what, fix="use GroupedSampler, or prompts without pictures")


def _seeing(body: Mapping[str, Any], media: Media, image_processor: QwenImageProcessor | None) -> dict[str, Any]:
    """Return the equivalent body of ``POST /inference/v1/generate``."""
    parts = (
        []
        if image_processor is None
        else [{"type": "image_url", "url": _address(picture, image_processor)} for picture in media]
    )
    return {
        "model": body["model"],
        "token_ids": _narrowed(body["prompt"], media),
        "sampling_params": {name: value for name, value in body.items() if name not in NOT_SAMPLING},
        "return_token_ids": True,
        **({"content_parts": parts} if parts else {}),
    }


def _narrowed(ids: Sequence[int], media: Media) -> list[int]:
    """Return token ids with one placeholder per picture."""
    found: list[int] = []
    end = 0
    for picture in media:
        found += ids[end : picture.start + 1]
        end = picture.start + picture.tokens
    return [*found, *ids[end:]]


@lru_cache(maxsize=8)
def _image(picture: Picture, image_processor: QwenImageProcessor) -> Image:
    """Decode and scale a picture; the small cache serves the responses of one prompt after another."""
    return image_processor.scaled(picture)


@lru_cache(maxsize=_KEPT)
def _address(picture: Picture, image_processor: QwenImageProcessor) -> str:
    """Return a picture as a data URL, lossless."""
    with io.BytesIO() as file:
        image_processor.scaled(picture).save(file, "PNG", compress_level=1)
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _check_places(places: Any, media: Media) -> None:
    """Check the position of each picture: adjacent pictures have the same tokens however they are divided."""
    found = places.get("image", []) if isinstance(places, dict) else []
    if found != [{"offset": picture.start, "length": picture.tokens} for picture in media]:
        raise BadReplyError(f"it has pictures elsewhere than the trainer (mm_placeholders: {shown(places)})")


def _completion(choice: Any) -> Any:
    """Convert a response to the form of ``/v1/completions``; malformed ones are left to the checks of that form."""
    found = choice.get("logprobs") if isinstance(choice, dict) else None
    content = found.get("content") if isinstance(found, dict) else None
    if not isinstance(content, list) or not all(isinstance(token, dict) for token in content):
        return choice
    if [token.get("token_id") for token in content] != choice.get("token_ids"):
        raise BadReplyError("its log-probabilities are those of other tokens")
    return {**choice, "logprobs": {"token_logprobs": [token.get("logprob") for token in content]}}
