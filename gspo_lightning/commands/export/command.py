"""``gspo export``: write a checkpoint's weights, tokenizer and model card to a folder, and optionally to the hub."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.core.errors import InfrastructureError, UserError, first_line
from gspo_lightning.core.escape import say
from gspo_lightning.policy.hub import SECONDS


def main(argv: Sequence[str]) -> int:
    """Write the policy or the reward model of a checkpoint with its tokenizer and model card.

    Raises:
        UserError: the checkpoint or its config is missing or unreadable, or the target exists.
    """
    parser = argparse.ArgumentParser("gspo export", description="Write a checkpoint in transformers format.")
    parser.add_argument("checkpoint", type=Path, help="a .ckpt file, a folder of shards, or a run folder (its "
                        "newest intact checkpoint)")  # fmt: skip
    parser.add_argument("output", type=Path, help="folder to write")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--adapter", action="store_true", help="write the adapters of model.lora alone, in PEFT's "
                      "format, instead of a model with them merged")  # fmt: skip
    form.add_argument("--gguf", choices=("F16", "Q8_0"), help="write a GGUF file, for a run that began with one; the "
                      "type of its matrices")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace the folder if an export wrote it")
    parser.add_argument("--evaluation", type=Path, action="append", default=[], metavar="FOLDER",
                        help="an --output of gspo evaluate, whose results go into the model card")  # fmt: skip
    parser.add_argument("--push_to_hub", metavar="REPO", help="upload the folder as well, to NAME/REPO on the hub; a "
                        "repository that is not there yet is made, private")  # fmt: skip
    parser.add_argument("--trust_remote_code", action="store_true", help="run Python code that the model's repository "
                        "ships; no checkpoint decides that")  # fmt: skip
    options = parser.parse_args(list(argv))
    if options.push_to_hub:
        check_repository(options.push_to_hub)
    export(
        options.checkpoint, options.output, overwrite=options.overwrite, trust_remote_code=options.trust_remote_code,
        evaluations=options.evaluation, adapter=options.adapter, gguf=options.gguf,
    )  # fmt: skip
    say(f"exported: {options.output}")
    if options.push_to_hub:
        say(f"uploaded: {push(options.output, options.push_to_hub)}")
    return 0


def export(
    checkpoint: Path,
    output: Path,
    *,
    overwrite: bool = False,
    trust_remote_code: bool = False,
    evaluations: Sequence[Path] = (),
    adapter: bool = False,
    gguf: str | None = None,
) -> None:
    """Export a checkpoint without the frozen old policy; the folder appears whole or not at all.

    Args:
        checkpoint: written by ``gspo fit`` or ``gspo fit-reward``; it records its base model. For a run folder it is
            the newest intact one, which is printed.
        output: loads with ``AutoModelForCausalLM.from_pretrained(output)``, a reward model with
            ``AutoModelForSequenceClassification``.
        overwrite: replace the folder of an earlier export; other folders are never replaced.
        trust_remote_code: run Python code that the model's repository ships.
        evaluations: output folders of ``gspo evaluate``, for the model card of a policy.
        adapter: write the adapters alone: ``PeftModel.from_pretrained(base, output)`` loads them.
        gguf: write a GGUF file with matrices of this type, ``F16`` or ``Q8_0``.

    Raises:
        UserError: a path is wrong, the checkpoint cannot be read, or it has no adapters of a policy to write alone.
    """
    if os.path.lexists(output) and not overwrite:
        raise UserError("output", f"{output} exists", fix="give another folder, or --overwrite")
    if not checkpoint.exists():  # both before torch is imported
        raise UserError("checkpoint", f"{checkpoint} does not exist")
    from gspo_lightning.commands.export.card import BASE, read_evaluations, write_card
    from gspo_lightning.commands.export.gguf_file import base_file, write_gguf
    from gspo_lightning.commands.export.weights import policy_of, weights_of_files
    from gspo_lightning.policy.adapters.adapter_files import base_of, save_adapters
    from gspo_lightning.policy.older_readers import add_older_names
    from gspo_lightning.resume import read_checkpoint
    from gspo_lightning.resume.exports import check_replaceable, exported_folder
    from gspo_lightning.resume.find import checkpoint_at
    from gspo_lightning.resume.resumption import REWARD_MODEL

    checkpoint = checkpoint_at(checkpoint, "checkpoint")
    sources = [checkpoint, *evaluations]
    check_replaceable(output, sources)
    results = read_evaluations(evaluations)
    content = read_checkpoint(checkpoint, "checkpoint")
    model = (content.get("gspo_lightning") or {"model": {}})["model"]  # empty: policy_of refuses the checkpoint
    if adapter and not model.get("lora"):
        problem = f"writes the adapters of a policy, but {checkpoint} holds none"
        raise UserError("--adapter", problem, fix="leave it out, or train with model.lora")
    if REWARD_MODEL in content:
        if gguf:
            raise UserError("--gguf", f"is for policies, but {checkpoint} holds a reward model", fix="leave it out")
        if evaluations:
            problem = f"is for policies, but {checkpoint} holds a reward model"
            raise UserError("--evaluation", problem, fix="leave it out: held-out results are in the card already")
        from gspo_lightning.commands.export.weights import export_reward_model

        export_reward_model(content, checkpoint, output, sources, trust_remote_code=trust_remote_code)
        return
    base = [Path(model["name_or_path"])] if model else []
    read_from = base_file(model) if gguf and model else None
    with exported_folder(output, [*sources, *base]) as unfinished:
        unfinished.mkdir()
        if adapter:
            policy = policy_of(content, checkpoint, trust_remote_code=trust_remote_code, merge=False)
            save_adapters(policy.model, unfinished, base=base_of(str(model["name_or_path"]), model.get("revision")))
            policy.tokenizer.save_pretrained(unfinished)
            add_older_names(unfinished)
            if Path(model["name_or_path"]).exists():  # a folder or a GGUF file: readers elsewhere do not have it
                policy.save_pretrained(unfinished / BASE, adapters=False)
        elif gguf and read_from:
            policy = policy_of(content, checkpoint, trust_remote_code=trust_remote_code)
            write_gguf(policy.model, read_from, unfinished / f"{output.name}.{gguf}.gguf", gguf)
        elif model and "state_dict" not in content and not model.get("lora"):  # shards: never the whole model in memory
            with tempfile.TemporaryDirectory(dir=unfinished) as mapped:
                policy = policy_of(content, checkpoint, trust_remote_code=trust_remote_code, on_disk=Path(mapped))
                policy.save_pretrained(unfinished, weights=weights_of_files(policy.model, Path(mapped)))
        else:
            policy_of(content, checkpoint, trust_remote_code=trust_remote_code).save_pretrained(unfinished)
        write_card(unfinished, content, checkpoint, results, adapter=adapter, gguf=gguf)


def check_repository(repository: str) -> None:
    """Check that the hub accepts a repository name, and that it answers, before the export takes minutes.

    Raises:
        UserError: the name is not valid, or the hub gives no answer.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError("--push_to_hub", str(error), fix="give NAME/REPO") from error
    try:
        HfApi().repo_info(repository, timeout=SECONDS)
    except HfHubHTTPError:
        return  # it answers: the repository may be made later
    except Exception as error:  # of the HTTP library, which is another one with every major version of the hub's client
        raise UserError(
            "--push_to_hub",
            f"{constants.ENDPOINT} gives no answer ({first_line(error)})",
            fix="check the network, HF_ENDPOINT and HF_HUB_OFFLINE; or leave it out, and later: hf upload "
            f"{repository} FOLDER",
        ) from error


def push(folder: Path, repository: str) -> str:
    """Upload a folder to a repository; create the repository, private, if it does not exist.

    Args:
        folder: written by ``gspo export``.
        repository: ``NAME/REPO``; the token comes from ``hf auth login`` or HF_TOKEN.

    Returns:
        URL of the repository.

    Raises:
        InfrastructureError: the hub is unreachable or refuses the upload.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by gspo export")
    except Exception as error:  # refused, unreachable, no token, a full disk: the library's own words
        raise InfrastructureError(
            f"the upload to {repository} failed ({' '.join(str(error).split())}); the folder {folder} is whole: "
            f"`hf upload {repository} {folder}` uploads it without another export"
        ) from error
    return str(address)
