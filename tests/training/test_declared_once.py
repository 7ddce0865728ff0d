"""Settings are declared once: one default and one explanation, for YAML, help, schema and ``GSPOConfig``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
from typing import Any

import pytest
import yaml

from gspo_lightning import GSPOConfig, GSPOModule, PromptDataModule
from gspo_lightning.cli import main
from gspo_lightning.commands.schema import FOLDER
from gspo_lightning.core.signatures import settings_class
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.loop.experience.settings import ExperienceSettings, SharedSettings
from gspo_lightning.policy.load.model_settings import BaseModelSettings, ModelSettings
from gspo_lightning.training.reward_models import RewardModule

SECTIONS = {GSPOModule: ModelSettings, PromptDataModule: ExperienceSettings, RewardModule: BaseModelSettings}
"""Class of a section -> dataclass of its settings."""
OTHER_MEANING = {"max_prompt_tokens"}
"""Fields of GSPOConfig that share a name with a setting of ``gspo fit`` but not its meaning: longer queries are
refused, not dropped, and None is the rest of the model's context."""


def declared(cls: type[Any]) -> dict[str, str]:
    """Field -> explanation, of a dataclass's own fields."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    explained = {}
    for statement, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            explained[statement.target.id] = text.value if isinstance(text, ast.Constant) else ""
    return explained


@pytest.mark.parametrize(("section", "settings"), SECTIONS.items(), ids=lambda cls: cls.__name__)
def test_a_section_declares_no_field_of_its_settings_again(section: type[Any], settings: type[Any]) -> None:
    assert settings_class(section) is settings
    fields = {field.name for field in dataclasses.fields(settings)}
    own = set(inspect.signature(section.__init__).parameters)
    assert own & fields <= {"name_or_path"}
    body = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {line.partition(":")[0].strip() for line in (ast.get_docstring(body) or "").splitlines()}
    assert documented & fields <= {"name_or_path"}


def test_every_field_has_one_explanation_and_one_class() -> None:
    places = [declared(cls) for cls in (SharedSettings, ExperienceSettings, BaseModelSettings, ModelSettings)]
    places.append(declared(GSPOConfig))
    for explained in places:
        assert not [name for name, text in explained.items() if not text and name != "shaping"]
    names = [name for explained in places for name in explained if name not in OTHER_MEANING]
    assert sorted(name for name in set(names) if names.count(name) > 1) == ["seed"]  # of the weights; of the draws
    arguments = set(inspect.signature(PromptDataModule.__init__).parameters)
    assert not arguments & set(declared(GSPOConfig))


def test_python_and_yaml_have_the_same_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--data.train", "ChainTask", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["data"]
    shared = {field.name for field in dataclasses.fields(SharedSettings)} - {"seed"}
    assert {name: getattr(GSPOConfig(), name) for name in shared} == {name: printed[name] for name in shared}
    assert (GSPOConfig().group_size, GSPOConfig().max_response_tokens) == (8, 512)


def test_signatures_show_every_setting() -> None:
    config = inspect.signature(GSPOConfig).parameters
    assert {"group_size", "max_response_tokens", "minibatches", "learning_rate", "device"} <= config.keys()
    module = inspect.signature(GSPOModule).parameters
    assert next(iter(module)) == "name_or_path"
    assert (module["layout"].default, module["lora"].default, module["objective"].default) == ("auto", None, None)
    assert not [p for p in module.values() if p.kind is p.VAR_KEYWORD]
    data = inspect.signature(PromptDataModule).parameters
    assert (data["group_size"].default, data["record_tokens"].default) == (8, 16)
    assert "shaping" not in data

    class Named(GSPOModule):
        def __init__(self, name: str) -> None:
            super().__init__(name)

    class Plain(GSPOModule):
        pass

    assert list(inspect.signature(Named).parameters) == ["name"]
    assert list(inspect.signature(Plain).parameters) == list(module)


def test_a_subclass_that_passes_keywords_on_shows_those_of_every_constructor_they_reach() -> None:
    module = inspect.signature(GSPOModule).parameters

    class Extra(GSPOModule):
        def __init__(self, extra: int, objective: str = "mine", **options: Any) -> None:
            super().__init__(**options)

    class Twice(Extra):
        def __init__(self, *, more: int = 2, **options: Any) -> None:
            super().__init__(1, **options)

    class Closed(GSPOModule):
        def __init__(self, name: str = "x") -> None:
            super().__init__(name)

    class Reopened(Closed):
        def __init__(self, more: int = 2, **options: Any) -> None:
            super().__init__(**options)

    class Forwarding(GSPOModule):
        def __init__(self, *args: Any, extra: int = 1, **options: Any) -> None:
            super().__init__(*args, **options)

    extra = inspect.signature(Extra).parameters
    assert list(extra) == ["extra", "objective", *(name for name in module if name != "objective")]
    assert (extra["objective"].default, extra["old_logprobs"].default, extra["layout"].default) == (
        "mine", "auto", "auto",
    )  # fmt: skip
    assert extra["extra"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert extra["name_or_path"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(Twice).parameters) == ["more", *extra]
    assert list(inspect.signature(Reopened).parameters) == ["more", "name"]
    assert list(inspect.signature(Forwarding).parameters) == ["args", "extra", *module]
    made = Twice(more=3, name_or_path="tiny-qwen3", seed=5, metrics="off")
    assert made.settings.seed == 5


def test_settings_reach_the_module_and_an_unknown_one_is_refused() -> None:
    data = PromptDataModule(ChainTask("train", size=8), group_size=4, prompts_per_rollout=8, stop_strings=["x"])
    assert (data.settings.group_size, data.settings.sampling([7]).stop_strings) == (4, ("x",))
    assert (data.settings.max_response_tokens, data.settings.dealing) == (512, "stratified")
    with pytest.raises(TypeError, match="group_sise"):
        PromptDataModule(ChainTask("train", size=8), group_sise=4)


def test_schema_keeps_range_and_explanation() -> None:
    """The shipped file is what ``gspo schema`` prints (tests/commands/test_schema.py)."""
    sections = json.loads((FOLDER / "fit.json").read_text("utf-8"))["properties"]
    size = sections["data"]["properties"]["group_size"]
    assert (size["minimum"], size["default"]) == (1, 8)
    assert size["description"].startswith("Responses per prompt (G)")
    assert sections["model"]["properties"]["layout"]["enum"] == ["auto", "packed", "padded"]
    assert "shaping" not in sections["data"]["properties"]


@pytest.mark.parametrize(
    ("flag", "near"), [("--data.group_sise", "group_size"), ("--model.revisions", "revision"), ("--data.shaping", "")]
)
def test_a_misspelt_inherited_setting_gets_its_name(flag: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "quickstart", flag, "4"]) == 2
    assert near in capsys.readouterr().err


def test_a_checkpoint_with_the_former_order_of_fields_is_read() -> None:
    former = {
        "name_or_path": "tiny-qwen3", "dtype": "float32", "attn_implementation": None, "gradient_checkpointing": False,
        "trust_remote_code": True, "revision": None, "config_overrides": {}, "seed": 3, "layout": "packed",
        "experts_implementation": None, "lora": None, "freeze": None, "batch_invariant": False,
        "mask_padding": True,
    }  # fmt: skip
    settings = ModelSettings.of_file(former, trust_remote_code=False)
    assert dataclasses.asdict(settings) == former | {"trust_remote_code": False}
