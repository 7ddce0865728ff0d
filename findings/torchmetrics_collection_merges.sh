#!/usr/bin/env bash
# A MetricCollection merges metrics whose counts agree after the first batch: accuracy at .9 is accuracy at .5 from then on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/pip install -qq --no-compile --disable-pip-version-check torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cat > program.py <<'PROGRAM'
import sys
import warnings

import torch
import torchmetrics
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryPrecision

torch.manual_seed(0)
sure = torch.tensor([0.99, 0.01]), torch.tensor([1, 0])
unsure = torch.rand(1000), torch.randint(0, 2, (1000,))


def measured(first, second, **options):
    metrics = {"at half": BinaryAccuracy(0.5), "at nine tenths": BinaryAccuracy(0.9), "precision": BinaryPrecision(0.9)}
    collection = MetricCollection(metrics, **options)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        collection.update(*first)
        collection.update(*second)
        values = {name: round(value.item(), 4) for name, value in collection.compute().items()}
    return values, len(raised)


print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__, "- accuracy and precision of 1,002 predictions:")
merged, warned = measured(sure, unsure)
reordered, _ = measured(unsure, sure)
alone, _ = measured(sure, unsure, compute_groups=False)
print("a small batch of sure ones first:", merged, "- warnings:", warned)
print("the same batches the other way round:", reordered)
print("compute_groups=False:", alone)
as_described = merged["at nine tenths"] == merged["at half"] and not warned and merged != alone and reordered == alone
sys.exit(not as_described)
PROGRAM
venv/bin/python program.py
