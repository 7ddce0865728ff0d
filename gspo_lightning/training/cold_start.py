"""Supervised cold start: a few hundred steps on demonstrations, made once and cached.

The GSPO paper, too, starts from a supervised model. The result is an ordinary folder in transformers format, named by
a hash of everything that decides its weights, and verified by its checksums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.faults import written
from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.data.prompts import Demonstration, HubPrompts, PromptFile, PromptSet, open_prompts
from gspo_lightning.data.prompts.demonstrations import Demonstrations
from gspo_lightning.data.prompts.taught import PromptFormat, Taught, teach
from gspo_lightning.policy.adapters.adapter_files import FIELD as START
from gspo_lightning.policy.adapters.adapter_files import WEIGHTS, adapter_folder, base_of, save_adapters
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.attention.rope import follows_length
from gspo_lightning.policy.load.gguf import loadable_name
from gspo_lightning.policy.load.loading import load_config, load_policy
from gspo_lightning.policy.load.model_settings import Layout, ModelSettings
from gspo_lightning.policy.load.trained_dtype import check_trained_dtype
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import TINY_MODELS
from gspo_lightning.resume.cached_model import found_or_made
from gspo_lightning.resume.files import sha256
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.saved_progress import SavedProgress
from gspo_lightning.training.supervised import Point, Supervised, learn, write_curve

log = logging.getLogger(__name__)

FIELD = "model.cold_start.demonstrations"
_HELD_OUT_FROM = 200
"""Smallest number of demonstrations in a file of which some are held out for measurement."""
_HELD_OUT_SHARE = 20
"""One demonstration in so many is held out."""
_HELD_OUT_MOST = 256
"""Largest number of held-out demonstrations."""
_TRIED = 16
"""Demonstrations that are encoded before the model is loaded: a wrong template fails on the first."""
_PLAIN = PromptFormat()
_UNLIMITED: dict[str, Any] = {
    "max_prompt_tokens": _PLAIN.max_prompt_tokens,
    "max_response_tokens": _PLAIN.max_response_tokens,
}


@dataclass(frozen=True)
class ColdStart:
    """A supervised start from demonstrations, cached under ``<default_root_dir>/cold_start``."""

    demonstrations: PromptSet | str
    """A file with ``prompt`` and ``completion`` or ``messages`` in every record (docs/cold_start.md), a hub id, or a
    prompt set with demonstrations, such as ``ChainTask`` with ``split: cold_start``."""
    steps: int = 500
    """Optimizer steps."""
    batch_size: int = 64
    """Demonstrations per step."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW; it falls linearly to a tenth."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    gradient_clip: float = 1.0
    """Largest gradient norm."""
    adapters: bool = False
    """True: train the adapters of ``model.lora``, with which the run continues and to which a KL term is measured.
    False: train all weights, and add new adapters to the result."""

    def ensure(
        self,
        settings: ModelSettings,
        root: Path,
        longest: int = 0,
        prompt_format: PromptFormat = _PLAIN,
        device: torch.device | str = "cpu",
    ) -> ModelSettings:
        """Make the cold start unless it is cached; return settings that load it.

        A killed process leaves its progress beside the target, and the next one continues there, bit for bit.

        Args:
            settings: settings of the model to start from.
            root: the folder of all runs.
            longest: tokens of the longest row of the run that follows; some rotary embeddings depend on it.
            prompt_format: the prompt format of that run.
            device: the device to train on, in the dtype of the weights.

        Raises:
            UserError: the demonstrations cannot be read or learnt from.
        """
        self.check_adapters(settings.lora)
        lora = settings.lora
        if not self.adapters:  # all weights are trained; new adapters are added to the result
            settings = dataclasses.replace(settings, lora=None)
        target = root.resolve() / "cold_start" / self.key(settings, longest, prompt_format)
        saved = SavedProgress(target)
        make = partial(self._make, settings, longest, prompt_format, torch.device(device), saved)
        found_or_made(target, make, what="cold start", steps=self.steps)
        saved.remove()
        if lora is not None and self.adapters:  # the trained adapters know their layers: target_modules is not needed
            trained = dataclasses.replace(lora, start_from=str(target), target_modules=LoRA.target_modules)
            return dataclasses.replace(settings, lora=trained)
        return dataclasses.replace(settings, lora=lora, name_or_path=str(target), config_overrides={}, revision=None)

    def made(self, settings: ModelSettings) -> Path:
        """Return the folder of the cold start from the settings that :meth:`ensure` returned."""
        start = settings.lora.start_from if settings.lora is not None and self.adapters else None
        return Path(settings.name_or_path if start is None else start)

    def check_adapters(self, lora: LoRA | None) -> None:
        """Check that there are adapters to train, or none whose base would change.

        Raises:
            UserError: ``adapters`` without ``model.lora``, or ``model.lora.start_from`` without ``adapters``.
        """
        if self.adapters and lora is None:
            raise UserError(
                "model.cold_start.adapters",
                "is true, but model.lora is not set",
                fix="set model.lora, for example {r: 16}",
            )
        if not self.adapters and lora is not None and lora.start_from is not None:
            raise UserError(
                START,
                "is set, but a cold start would change the weights that these adapters were trained on",
                fix="leave out one of the two (--model.cold_start=null), or set model.cold_start.adapters: true",
            )

    def check(self, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat = _PLAIN) -> None:
        """Read all demonstrations and encode the first ones, while a mistake is still cheap.

        Raises:
            UserError: as :meth:`ensure`; but the token that ends a turn is only known with the model.
        """
        pairs, where = self._read()
        teach(pairs[:_TRIED], tokenizer, None, dataclasses.replace(prompt_format, **_UNLIMITED), where, FIELD)

    def fingerprint(self) -> dict[str, Any]:
        """Return number and SHA-256 of the demonstrations, for checkpoints."""
        pairs, _ = self._read()
        return {"prompts": len(pairs), "sha256": hashlib.sha256(_json(list(pairs)).encode()).hexdigest()}

    def key(self, settings: ModelSettings, longest: int = 0, prompt_format: PromptFormat = _PLAIN) -> str:
        """Return a hash of everything that decides the weights, including package versions."""
        import transformers

        folder = Path(loadable_name(settings.name_or_path))
        files = []
        if folder.is_dir():  # a folder may be overwritten under its name, so that its files count, too
            files = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.glob("*")]
        described_model = dataclasses.asdict(settings)
        if not described_model["mask_padding"]:  # as in the key of a run that began before there was such a mask
            del described_model["mask_padding"]
        names = {field.name for field in dataclasses.fields(self)} - {"demonstrations", "adapters"}
        demonstrations, _ = self._read()
        described = {
            "cold_start": {name: getattr(self, name) for name in names},
            "demonstrations": list(demonstrations),
            "model": [described_model, sorted(files)],
            "versions": [torch.__version__, transformers.__version__],
            "format": 2,
        }
        if settings.lora is not None and settings.lora.start_from is not None:
            described["start"] = sha256(adapter_folder(settings.lora.start_from) / WEIGHTS)
        if settings.name_or_path not in TINY_MODELS and follows_length(load_config(settings)):
            described["longest"] = longest
        if prompt_format.system_prompt is not None or prompt_format.chat_template_kwargs:
            described["asking"] = [prompt_format.system_prompt, dict(prompt_format.chat_template_kwargs)]
        if self._from_file:
            described["file"] = [
                prompt_format.max_prompt_tokens,
                prompt_format.max_response_tokens,
                prompt_format.stop_token_ids,
            ]
        return hashlib.sha256(_json(described).encode()).hexdigest()[:16]

    def _make(
        self,
        settings: ModelSettings,
        longest: int,
        prompt_format: PromptFormat,
        device: torch.device,
        saved: SavedProgress,
        folder: Path,
    ) -> None:
        policy = load_policy(settings).to(device)
        curve = self.train(policy, settings.seed, prompt_format, longest, settings.layout, saved)
        with written(f"the cold start {folder}", folder):
            if settings.lora is None:
                policy.save_pretrained(folder)
            else:
                save_adapters(policy.model, folder, base=base_of(settings.name_or_path, settings.revision))
                policy.tokenizer.save_pretrained(folder)
            write_curve(curve, folder)

    def train(
        self,
        policy: Policy,
        seed: int,
        prompt_format: PromptFormat = _PLAIN,
        longest: int = 0,
        layout: Layout = "auto",
        saved: SavedProgress | None = None,
    ) -> list[Point]:
        """Train in place; return the loss curve in nats per learnt token.

        Args:
            policy: the policy.
            seed: of the order of demonstrations.
            prompt_format: the prompt format of the run that follows.
            longest: tokens of the longest row of that run.
            layout: of the rows; ``packed`` leaves padding out.
            saved: keeps the state now and then, and gives that of a killed process.
        """
        check_trained_dtype(policy)
        pairs, where = self._read()
        if not self._from_file:
            prompt_format = dataclasses.replace(prompt_format, **_UNLIMITED)
        rows = teach(pairs, policy.tokenizer, policy.eos_token_ids, prompt_format, where, FIELD)
        lengths = [len(row.prompt) + len(row.response) for row in rows]
        choose_layout(policy, layout, max(longest, *lengths))
        rows, held_out = self._split(rows, seed)

        def batch(step: int) -> list[int]:
            order = permutation(stream(seed, Purpose.COLD_START, step), len(rows))
            return [int(i) for i in order[: self.batch_size]]

        settings = Supervised(self.steps, self.gradient_clip, self._rate, batch)
        curve = learn(policy, rows, held_out, settings, saved)
        held_out_loss = curve[-1].held_out_loss
        measured = "" if held_out_loss is None else f", {held_out_loss:.3f} on {len(held_out)} held-out ones"
        log.info(
            "cold start: loss %.3f -> %.3f in %d steps on %d demonstrations%s",
            curve[0].loss, curve[-1].loss, self.steps, len(rows), measured,
        )  # fmt: skip
        return curve

    def _split(self, rows: list[Taught], seed: int) -> tuple[list[Taught], list[Taught]]:
        """Split rows into training and held-out ones; generated demonstrations need no held-out rows."""
        if not self._from_file or len(rows) < _HELD_OUT_FROM:
            return rows, []
        count = min(len(rows) // _HELD_OUT_SHARE, _HELD_OUT_MOST)
        order = permutation(stream(seed, Purpose.COLD_START_HELD_OUT), len(rows))
        held_out = {int(number) for number in order[:count]}
        train_rows = [row for number, row in enumerate(rows) if number not in held_out]
        return train_rows, [rows[number] for number in sorted(held_out)]

    def _rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        return self.learning_rate * self._schedule(step)

    def _schedule(self, step: int) -> float:
        """Return what multiplies the rate of a step, from 0: a linear warm-up, times a linear fall to a tenth."""
        warm_up = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        decay = 1.0 - 0.9 * step / self.steps
        return warm_up * decay

    @property
    def _from_file(self) -> bool:
        return isinstance(self.demonstrations, str | PromptFile | HubPrompts)

    def _read(self) -> tuple[Sequence[Demonstration], Callable[[int], str]]:
        """Return the demonstrations, and a function from a number to its place in the source."""
        try:
            demonstrations = open_prompts(self.demonstrations, {}).demonstrations()
        except NotImplementedError as error:
            fix = "give a file of demonstrations, or a prompt set that has them, such as ChainTask"
            raise UserError(FIELD, str(error), fix=fix) from error
        except UserError as error:
            raise UserError(FIELD, error.problem, fix=error.fix) if error.field == "data" else error from None
        if isinstance(demonstrations, Demonstrations):
            return demonstrations, demonstrations.where
        return demonstrations, lambda number: f"{FIELD}, record {number + 1}"


def prompt_format_of(data: PromptDataModule) -> PromptFormat:
    """Return the prompt format of a run: demonstrations use the same."""
    settings = data.settings
    return PromptFormat(
        data.sets.system_prompt,
        data.sets.chat_template_kwargs,
        tuple(settings.stop_token_ids or ()),
        settings.max_prompt_tokens,
        settings.max_response_tokens,
    )


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
