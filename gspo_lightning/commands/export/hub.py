"""Upload of an exported folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from gspo_lightning.errors import InfrastructureError, UserError

__all__ = ["check_repository", "push"]


def check_repository(repository: str) -> None:
    """Check that the hub accepts a repository name, before the export takes minutes.

    Raises:
        UserError: the name is not valid.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError("--push_to_hub", str(error), fix="give NAME/REPO") from error


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
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi()
    try:
        address = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by gspo export")
    except (HfHubHTTPError, OSError) as error:
        raise InfrastructureError(
            f"the upload to {repository} failed ({' '.join(str(error).split())}); the folder {folder} is whole: "
            f"`hf upload {repository} {folder}` uploads it without another export"
        ) from error
    return str(address)
