"""What an interrupted run needs to go on: checkpoints that can be trusted, and a way to see what has changed since."""

from gspo_lightning.resume.changes import Change, changes, forbidden
from gspo_lightning.resume.epochs import close_epoch, reopen_epoch
from gspo_lightning.resume.files import atomic_file, sync_folder, write_text
from gspo_lightning.resume.find import Found, find_checkpoint, newest_run, read_checkpoint
from gspo_lightning.resume.finite import check_finite
from gspo_lightning.resume.folders import METADATA, is_folder, remove, save_folder, unwritable
from gspo_lightning.resume.logs import flush
from gspo_lightning.resume.manifest import Manifest, damage, manifest_path, manifests
from gspo_lightning.resume.resumption import Provenance, Resumption, fingerprint

__all__ = [
    "METADATA", "Change", "Found", "Manifest", "Provenance", "Resumption", "atomic_file", "changes", "check_finite",
    "close_epoch", "damage", "find_checkpoint", "fingerprint", "flush", "forbidden", "is_folder", "manifest_path",
    "manifests", "newest_run", "read_checkpoint", "remove", "reopen_epoch", "save_folder", "sync_folder",
    "unwritable", "write_text",
]  # fmt: skip
