"""Resume of interrupted runs: verified checkpoints, and a comparison with the run that wrote them."""

from gspo_lightning.resume.changes import Change, changes, forbidden
from gspo_lightning.resume.files import atomic_file, swapping, sync_folder, synced, uninterrupted, write_text
from gspo_lightning.resume.find import Found, find_checkpoint, newest_run, read_checkpoint
from gspo_lightning.resume.folders import METADATA, check_finite, is_folder, save_folder, unwritable, write_shards
from gspo_lightning.resume.lightning import close_epoch, flush, reopen_epoch
from gspo_lightning.resume.manifest import Manifest, damage, manifest_path, manifests, next_serial
from gspo_lightning.resume.reading import check_shards, fault_of, read_tensors
from gspo_lightning.resume.resumption import Fingerprint, Provenance, Resumption, plain
from gspo_lightning.resume.writer import Writer, claim_version, is_held

__all__ = [
    "METADATA", "Change", "Fingerprint", "Found", "Manifest", "Provenance", "Resumption", "Writer", "atomic_file",
    "changes", "check_finite", "check_shards", "claim_version", "close_epoch", "damage", "fault_of", "find_checkpoint",
    "flush", "forbidden", "is_folder", "is_held", "manifest_path", "manifests", "newest_run",
    "next_serial", "plain", "read_checkpoint", "read_tensors", "reopen_epoch", "save_folder", "swapping", "sync_folder",
    "synced", "uninterrupted", "unwritable", "write_shards", "write_text",
]  # fmt: skip
