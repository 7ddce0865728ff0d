#!/usr/bin/env bash
# generate counts padding as text: with padding of EOS, a repetition penalty makes shorter prompts of a batch end later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check transformers==5.19.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

END = 1
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, eos_token_id=END, pad_token_id=END)).eval()
alone, padded = torch.tensor([[5, 6, 7]]), torch.tensor([[END, END, 5, 6, 7]])


def scores(ids, **options):
    """Scores of the next token, with padding masked."""
    mask = torch.ones_like(ids)
    mask[:, : ids.shape[1] - 3] = 0
    said = model.generate(
        ids, attention_mask=mask, max_new_tokens=1, do_sample=False, output_scores=True, return_dict_in_generate=True, **options
    )
    return said.scores[0][0]


print("transformers", transformers.__version__, "- score of EOS for a prompt alone, and with two tokens of padding on its left:")
found = {}
for name, options in {"no penalty": {}, "repetition_penalty 2": {"repetition_penalty": 2.0}, "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1}}.items():
    one, other = scores(alone, **options), scores(padded, **options)
    found[name] = (one[END].item(), other[END].item())
    rest = torch.arange(64) != END
    print(f"{name}: {one[END]:.4f} and {other[END]:.4f}; other tokens equal: {torch.allclose(one[rest], other[rest], atol=1e-5)}")
same, penalty, never = found.values()
sys.exit(not (abs(same[0] - same[1]) < 1e-5 and abs(penalty[0] - penalty[1]) > 1e-3 and never[1] == -float("inf") < never[0]))
PROGRAM
venv/bin/python program.py
