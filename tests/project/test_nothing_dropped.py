"""What is computed is used: attributes are read, and functions are called, by the package or from its documentation."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests import ROOT

PACKAGE = ROOT / "gspo_lightning"
READ_ELSEWHERE = {
    "strict_loading": "Lightning's, when it loads a checkpoint",
    "save_config_callback": "LightningCLI's",
    "_precision_plugin": "Lightning's strategies'",
    "_data_parallel_size": "Lightning's ModelParallelStrategy",
    "_tensor_parallel_size": "Lightning's ModelParallelStrategy",
    "save_top_k": "Lightning's loggers, with log_model",
    "best_model_score": "Lightning's loggers, with log_model",
    "cumulative_length": "transformers', of cache layers with a window",
    "parse_array": "json's decoder",
    "scan_once": "json's decoder",
}


@pytest.mark.thorough
def test_every_attribute_that_is_set_is_read() -> None:
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    written = {
        node.attr
        for node in attributes
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    read = {node.attr for node in attributes if isinstance(node.ctx, ast.Load)}
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # getattr
    assert written - read - named == READ_ELSEWHERE.keys()


def test_every_function_and_class_is_named_twice() -> None:
    """Where it is defined and where it is used; docs and configs count, tests do not."""
    folders = ("gspo_lightning", "plugins", "benchmarks", "experiments", "tools", "docs", "configs", "examples")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".md", ".yaml")
    ]
    names = Counter(name for file in files for name in re.findall(r"[A-Za-z_]\w*", file.read_text(errors="ignore")))
    defined = {
        node.name
        for file in files
        if file.suffix == ".py" and file.is_relative_to(PACKAGE)
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert {name for name in defined if names[name] < 2} == {"cut_micro_batches"}  # cuts whole rollouts, for tests
