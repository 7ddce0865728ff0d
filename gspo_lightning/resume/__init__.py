"""What an interrupted run needs to go on: checkpoints that can be trusted, and a way to see what has changed since."""

from gspo_lightning.resume.changes import Change, changes, forbidden
from gspo_lightning.resume.files import atomic_file, sync_folder, write_text
from gspo_lightning.resume.find import Found, find_checkpoint, newest_run, read_checkpoint
from gspo_lightning.resume.logs import flush
from gspo_lightning.resume.manifest import Manifest, damage, manifest_path, manifests
from gspo_lightning.resume.resumption import Provenance, Resumption, fingerprint

__all__ = [
    "Change", "Found", "Manifest", "Provenance", "Resumption", "atomic_file", "changes", "damage", "find_checkpoint",
    "fingerprint", "flush", "forbidden", "manifest_path", "manifests", "newest_run", "read_checkpoint", "sync_folder",
    "write_text",
]  # fmt: skip
