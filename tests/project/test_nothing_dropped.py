"""What is computed is used: an attribute that the package sets on itself is read somewhere."""

from __future__ import annotations

import ast

from tests import ROOT

PACKAGE = ROOT / "gspo_lightning"
READ_ELSEWHERE = {
    "strict_loading": "Lightning's, when it loads a checkpoint",
    "save_config_callback": "LightningCLI's",
    "_precision_plugin": "Lightning's strategies'",
    "_data_parallel_size": "Lightning's ModelParallelStrategy",
    "_tensor_parallel_size": "Lightning's ModelParallelStrategy",
    "cumulative_length": "transformers', of cache layers with a window",
}


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
