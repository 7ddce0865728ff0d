"""The columns of public sets are those of the configs that ship."""

from __future__ import annotations

import pytest
import yaml

from gspo_lightning.commands.data.convert import KNOWN_SETS
from tests import ROOT


@pytest.mark.parametrize("name", [name for name in KNOWN_SETS if (ROOT / f"configs/data/{name}.yaml").exists()])
def test_columns_are_those_of_the_config(name: str) -> None:
    config = yaml.safe_load((ROOT / f"configs/data/{name}.yaml").read_text())
    assert config["data"]["columns"] == KNOWN_SETS[name]


def test_most_configs_are_known() -> None:
    assert len([name for name in KNOWN_SETS if (ROOT / f"configs/data/{name}.yaml").exists()]) >= 6
