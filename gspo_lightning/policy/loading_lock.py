"""Pretrained models are loaded by one thread at a time.

``from_pretrained`` of transformers replaces ``PreTrainedModel.tie_weights`` while it runs. Two loads whose beginnings
and ends cross leave it replaced: every later model of that process would silently lose its tied output head.
Nothing here imports torch: reward workers start with it.
"""

from __future__ import annotations

import threading

__all__ = ["LOADING"]

LOADING = threading.Lock()
"""To be held while a model is made or loaded."""
