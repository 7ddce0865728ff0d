"""Classifiers and reward models as rewards: transformers sequence-classification models, batched on the device."""

from __future__ import annotations

from collections.abc import Sequence
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Literal

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.policy.hub import check_no_kernel
from gspo_lightning.policy.load.loading_lock import LOADING
from gspo_lightning.policy.load.soft_caps import attention_options
from gspo_lightning.rewards.chat import completion_messages, prompt_messages, tools_of
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Sample, Score

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

    _Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase, int]


class SequenceClassificationReward(Reward):
    """The output of a sequence-classification model: its logit (scalar head), or the probability of one of its labels.

    It runs in the training process, where the device is, under ``no_grad`` and with the model in eval mode. The model
    is loaded when the first sample is scored (at start-up, by the check on canned completions).

    Args:
        name_or_path: hub id or folder of a model for ``AutoModelForSequenceClassification``.
        label: index or name of the label whose probability is the reward; None for a model with a scalar head.
        text: the model's input: ``joined`` (prompt and completion, one text), ``pair`` (as two segments),
            ``completion`` alone, or ``chat`` (the model's own chat template around the two).
        batch_size: samples per forward pass; affects memory only, never results.
        max_tokens: longer texts are *missing*, never cut; None takes the model's own limit.
        dtype: of the weights: ``auto`` as saved, or a torch name such as ``bfloat16``.
        device: None takes this process's accelerator, or the CPU if there is none.
        trust_remote_code: run Python code that the model repository ships. Only for repositories you have read.
        revision: branch, tag or commit of a hub id.

    Raises:
        UserError: at loading: no such model or label, or several labels and none chosen.
    """

    where = "trainer"

    def __init__(
        self,
        name_or_path: str,
        label: int | str | None = None,
        text: Literal["joined", "pair", "completion", "chat"] = "joined",
        batch_size: int = 16,
        max_tokens: int | None = None,
        dtype: str = "auto",
        device: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise UserError(f"SequenceClassificationReward.{name}", f"is {value}; it must be at least 1")
        if text not in ("joined", "pair", "completion", "chat"):
            raise UserError(
                "SequenceClassificationReward.text", f"is {text!r}; it must be joined, pair, completion or chat"
            )
        self.name_or_path = name_or_path
        self.label = label
        self.text = text
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.dtype = dtype
        self.device = device
        self.trust_remote_code = trust_remote_code
        self.revision = revision
        self._loaded: _Loaded | None = None
        self._pad: int | None = None
        """The padding token that the model skips; None if its config names none."""

    def prepare(self) -> None:
        """Load model and tokenizer."""
        self._load()

    def score_batch(self, samples: Sequence[Sample]) -> list[Score]:
        """Score samples, one value each; rows of similar length share a batch."""
        import torch

        model, tokenizer, column = self._load()
        rows = [self._encode(sample, tokenizer) for sample in samples]
        lengths = [len(row["input_ids"]) for row in rows]
        limit = self.max_tokens or _limit(model, tokenizer)
        scores = [
            Score.missing(f"{length} tokens, more than max_tokens = {limit}")
            if length
            else Score.model_error("nothing to read")
            for length in lengths
        ]
        fitting = sorted((i for i, n in enumerate(lengths) if 0 < n <= limit), key=lambda i: lengths[i])
        for start in range(0, len(fitting), self.batch_size):
            places = fitting[start : start + self.batch_size]
            with torch.no_grad():
                logits = model(**_padded([rows[i] for i in places], tokenizer, model, self._pad)).logits.float()
            for i, value in zip(places, _values(logits, column, model).tolist(), strict=True):
                scores[i] = Score(value, single=True)
        return scores

    def _encode(self, sample: Sample, tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
        if self.text == "chat":
            messages = [*prompt_messages(sample), *completion_messages(sample)]
            rendered = tokenizer.apply_chat_template(messages, tokenize=False, **tools_of(sample.columns))
            return tokenizer(rendered, add_special_tokens=False)  # the template writes its own special tokens
        if self.text == "pair":
            return tokenizer(sample.prompt, sample.completion)
        return tokenizer(sample.completion if self.text == "completion" else sample.prompt + sample.completion)

    def _load(self) -> _Loaded:
        if self._loaded is None:
            import torch

            from gspo_lightning.policy.load.classifier import pad_of

            model, tokenizer = self._from_pretrained()
            device = self.device or (
                torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
            )
            if tokenizer.pad_token_id is None:
                tokenizer.pad_token = tokenizer.eos_token
            tokenizer.padding_side = "right"
            self._pad = pad_of(model)
            self._check(model.to(device).eval(), tokenizer)
            self._loaded = model, tokenizer, self._column(model)
        return self._loaded

    def _check(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Check that padding does not change a logit: score a text alone and beside a longer one."""
        from gspo_lightning.policy.load.classifier import check_reading

        rows = [tokenizer(text) for text in ("1 + 1", "1 + 1 = 2")]
        lengths = [len(row["input_ids"]) for row in rows]
        if 0 < lengths[0] < lengths[1] <= _limit(model, tokenizer):
            alone = _padded(rows[:1], tokenizer, model, self._pad)
            beside = _padded(rows, tokenizer, model, self._pad)
            check_reading(model, alone, beside, "SequenceClassificationReward.name_or_path")

    def _from_pretrained(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification

        from gspo_lightning.policy.load.tokenizer import read_tokenizer
        from gspo_lightning.resume.reading import fault_of

        source = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        dtype = self.dtype if self.dtype == "auto" else getattr(torch, self.dtype, None)
        if dtype is None:
            raise UserError("SequenceClassificationReward.dtype", f"torch has no {self.dtype!r}", fix="bfloat16, say")
        try:
            tokenizer = read_tokenizer(
                self.name_or_path,
                revision=self.revision,
                trust_remote_code=self.trust_remote_code,
                field="SequenceClassificationReward.name_or_path",
            )
            config = AutoConfig.from_pretrained(self.name_or_path, **source)
            check_no_kernel("SequenceClassificationReward", config._attn_implementation, self.trust_remote_code)
            with LOADING:
                model, report = AutoModelForSequenceClassification.from_pretrained(
                    self.name_or_path, config=config, dtype=dtype, output_loading_info=True,
                    **attention_options(config), **source,
                )  # fmt: skip
        except UserError:
            raise
        except (OSError, ValueError, ImportError, RuntimeError, UnpicklingError) as error:  # Runtime: shape mismatch
            raise _refusal(f"{self.name_or_path!r} cannot be loaded: {fault_of(error)}") from error
        if missing := sorted(report["missing_keys"]):
            raise _refusal(
                f"{self.name_or_path!r} is not a trained classifier: it has no weights for {', '.join(missing)}"
            )
        if self.text == "chat" and tokenizer.chat_template is None:
            raise UserError(
                "SequenceClassificationReward.text", "'chat' needs a chat template; this tokenizer has none"
            )
        trained = getattr(model.config, "gspo_reads", None)  # set in models exported by gspo fit-reward
        if trained is not None and trained != self.text:
            raise UserError(
                "SequenceClassificationReward.text",
                f"is {self.text!r}, but this reward model was trained to read {trained!r}",
                fix=f"set text: {trained}",
            )
        return model, tokenizer

    def _column(self, model: PreTrainedModel) -> int:
        """Return the index of the logit to use as the reward."""
        labels = {int(i): str(name) for i, name in model.config.id2label.items()}
        if self.label is None and len(labels) == 1:
            return 0
        for index, name in labels.items():
            if self.label in (index, name):
                return index
        choices = [f"{i} ({name})" for i, name in labels.items()]
        if self.label is None:
            raise UserError(
                "SequenceClassificationReward.label",
                f"is not set, but the model has {len(labels)}: {', '.join(choices)}",
            )
        hint = did_you_mean(str(self.label), labels.values())
        raise UserError("SequenceClassificationReward.label", f"{self.label!r} is not a label of the model; {hint}")


def _padded(
    rows: Sequence[BatchEncoding], tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, pad: int | None
) -> BatchEncoding:
    """Pad rows to a batch in which the model reads each row at the same token as without padding.

    Models read the last token that is not their config's ``pad``, so only this token may pad a row, whatever the
    tokenizer uses. A model without one reads the last token: it is given a pad token that ends no row.
    """
    import torch

    from gspo_lightning.policy.load.classifier import set_pad

    batch = tokenizer.pad(list(rows), return_tensors="pt")
    if pad is None:
        pad = min(set(range(len(rows) + 1)) - {row["input_ids"][-1] for row in rows})
        set_pad(model, pad, "SequenceClassificationReward.name_or_path")
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    filled = torch.arange(batch["input_ids"].shape[1]) >= lengths[:, None]
    batch["input_ids"] = batch["input_ids"].masked_fill(filled, pad)
    return batch.to(model.device)


def _values(logits: torch.Tensor, column: int, model: PreTrainedModel) -> torch.Tensor:
    """Return [N] rewards from logits [N, labels]: the logit of a scalar head, else the probability of the label."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    independent = model.config.problem_type == "multi_label_classification"
    return (logits.sigmoid() if independent else logits.softmax(dim=1))[:, column]


def _limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the maximum input length of the model, in tokens."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(tokenizer.model_max_length, positions or tokenizer.model_max_length)


def _refusal(problem: str) -> UserError:
    return UserError(
        "SequenceClassificationReward.name_or_path", problem, fix="name a model for AutoModelForSequenceClassification"
    )
