#!/usr/bin/env bash
# GRPOTrainer measures KL to the files that a model came from, not to the model it was given: a merged SFT is its drift.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check trl==1.16.0 torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 accelerate==1.15.0 datasets==5.2.0
cat > program.py <<'PROGRAM'
import sys
import warnings

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

transformers.logging.set_verbosity_error()
words = {word: place for place, word in enumerate(["<pad>", "<eos>", "<unk>", *map(str, range(29))])}
characters = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
characters.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, initializer_range=0.2, pad_token_id=0, eos_token_id=1)).save_pretrained("base")
tokenizer.save_pretrained("base")


def first_kl(move):
    """KL that the trainer logs before the first update, for the model of the files, moved in memory."""
    model = AutoModelForCausalLM.from_pretrained("base")
    with torch.no_grad():  # as merging an adapter of a supervised stage does
        for weight in model.parameters():
            weight.add_(move * torch.randn_like(weight))
    settings = trl.GRPOConfig(
        "runs", use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, logging_steps=1, max_steps=1, save_strategy="no",
        num_generations=4, per_device_train_batch_size=8, max_completion_length=8, beta=0.04, gradient_checkpointing=False,
    )
    trainer = trl.GRPOTrainer(
        model, lambda completions, **_: [float(len(text)) for text in completions], settings,
        Dataset.from_list([{"prompt": "1 2 3"}, {"prompt": "4 5 6"}] * 4), processing_class=tokenizer,
    )
    trainer.train()
    return next(entry["kl"] for entry in trainer.state.log_history if "kl" in entry)


print("trl", trl.__version__, "transformers", transformers.__version__, "- KL at the first update, before any step:")
with warnings.catch_warnings(record=True) as raised:
    warnings.simplefilter("always")
    as_it_is, moved = first_kl(0.0), first_kl(0.1)
about = [str(warning.message) for warning in raised if "ref" in str(warning.message).lower()]
print(f"the model of the files: {as_it_is:.6f}")
print(f"the same, with its weights changed in memory before the trainer got it: {moved:.6f} - warnings about it: {len(about)}")
sys.exit(not (abs(as_it_is) < 1e-5 and moved > 0.01 and not about))
PROGRAM
HF_HUB_OFFLINE=1 venv/bin/python program.py 2> errors || { status=$?; cat errors; exit $status; }
