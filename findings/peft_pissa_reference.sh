#!/usr/bin/env bash
# With PiSSA or OLoRA the model with its adapter disabled is not the base model: a KL term to it is not 0 at the start.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 \
  transformers==5.19.0 peft==0.21.2 accelerate==1.15.0
cat > program.py <<'PROGRAM'
import sys
import warnings

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.arange(40)[None]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def kl(log_p, log_q):
    """Mean of KL(p || q) over the places of a text, in nats."""
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()


@torch.no_grad()
def divergences(start):
    """KL of the model before any update to the base model, and to itself with the adapter disabled."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.2, **SIZES)).eval()
    base = model(IDS).logits.log_softmax(-1)
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=start)).eval()
    policy = adapted(IDS).logits.log_softmax(-1)
    with adapted.disable_adapter():
        reference = adapted(IDS).logits.log_softmax(-1)
    return kl(policy, base), kl(policy, reference)


print("peft", peft.__version__, "torch", torch.__version__, "- KL before the first update:")
found = {}
with warnings.catch_warnings(record=True) as raised:
    warnings.simplefilter("always")
    for start in (True, "gaussian", "orthogonal", "pissa", "olora"):
        found[start] = to_base, to_disabled = divergences(start)
        print(f"init_lora_weights={start}: to the base model {to_base:.6f}, to the model with the adapter disabled {to_disabled:.6f}")
print("warnings:", len(raised))
same = all(abs(value) < 1e-5 for start in (True, "gaussian", "orthogonal") for value in found[start])
moved = all(abs(found[start][0]) < 1e-5 and found[start][1] > 0.05 for start in ("pissa", "olora"))
sys.exit(not (same and moved))
PROGRAM
venv/bin/python program.py
