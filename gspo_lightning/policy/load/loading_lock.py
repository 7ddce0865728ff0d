"""Lock that lets one thread at a time load pretrained models.

``from_pretrained`` of transformers replaces ``PreTrainedModel.tie_weights`` while it runs. Two loads that overlap
without nesting leave it replaced: every later model of the process would silently lose its tied output head.
Nothing here imports torch, because reward workers start with it.
"""

from __future__ import annotations

import threading

LOADING = threading.RLock()
"""Hold it while a model is built or loaded."""
