"""``gspo schema``: what ships is valid, what is wrong is not, and every stated range is kept by constructors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.configs import SCHEMA_LINE, about, built_in
from gspo_lightning.commands.fit.hints import members, parameters
from gspo_lightning.commands.schema import COMMANDS, FOLDER, bounds, descriptions
from gspo_lightning.core import registry
from tests import ROOT
from tests.support.pages import PAGES, blocks

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
TEMPLATES = sorted((ROOT / "gspo_lightning" / "commands" / "templates").rglob("*.yaml"))


class Editor(yaml.SafeLoader):
    """YAML 1.2, as editors read it: 1e-5 is a number, and ``off`` a text."""


Editor.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":bool", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$")
Editor.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("(true|false)$"), list("tf"))
Editor.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def validator(file: Path) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(json.loads(file.read_text()))


FIT = validator(FOLDER / "fit.json")


def faults(text: str, schema: jsonschema.Draft7Validator = FIT) -> list[str]:
    return [f"{list(e.absolute_path)}: {e.message[:200]}" for e in schema.iter_errors(yaml.load(text, Editor))]


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_the_shipped_file_is_what_the_command_prints(command: str) -> None:
    """In a process of its own: plug-ins of other tests are registered here.

    ``gspo schema fit > configs/schema/fit.json`` writes the file.
    """
    argv = [sys.executable, "-m", "gspo_lightning", "schema", command]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown == (FOLDER / f"{command}.json").read_text()


def test_the_schemas_are_schemas() -> None:
    for command in COMMANDS:
        jsonschema.Draft7Validator.check_schema(json.loads((FOLDER / f"{command}.json").read_text()))


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f.relative_to(ROOT / "configs").as_posix())
def test_a_shipped_config_points_to_its_schema_and_is_valid(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith(SCHEMA_LINE)
    schema = (file.parent / first.removeprefix(SCHEMA_LINE)).resolve()
    assert schema == FOLDER.resolve() / schema.name
    assert faults(file.read_text(), validator(schema)) == []


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda f: f.parent.name)
def test_a_template_is_valid_where_it_is_written(file: Path, tmp_path: Path) -> None:
    others = {"real": ["--model", "tiny-qwen3"], "programs": ["--task", "code", "--card", "24GB"]}
    kind = others.get(file.parent.name, ["--task", file.parent.name])
    assert main(["init", str(tmp_path / "mine"), *kind]) == 0
    written = (tmp_path / "mine" / "train.yaml").read_text()
    assert written.startswith(f"{SCHEMA_LINE}schema.json\n")
    assert faults(written, validator(tmp_path / "mine" / "schema.json")) == []


def test_a_project_has_the_schema_that_its_config_points_to(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "schema.json").read_text() == (FOLDER / "fit.json").read_text()


def test_the_line_for_editors_is_no_description() -> None:
    assert not [name for name, file in built_in().items() if "yaml-language-server" in about(file)]


def test_configs_in_the_docs_are_valid() -> None:
    found = {
        page.stem: faults(text)
        for page in PAGES
        for _, language, text in blocks(page)
        if language == "yaml" and not {"samples", "text", "batch_size"} & set(re.findall(r"^ *(\w+):", text, re.M))
    }
    assert {name: list(errors) for name, errors in found.items() if errors} == {}


WRONG = {
    "misspelt section": "modle: {objective: GSPO}",
    "misspelt key": "data: {group_sise: 8}",
    "key of another section": "model: {group_size: 8}",
    "foreign word": "data: {num_generations: 8}",
    "misspelt option of a dataclass": "model: {lora: {rank: 8}}",
    "misspelt key of the trainer": "trainer: {max_epoch: 3}",
    "text for a number": "data: {group_size: eight}",
    "fraction for a whole number": "data: {group_size: 2.5}",
    "number for a text": "model: {name_or_path: 3}",
    "text for true or false": "model: {gradient_checkpointing: 'yes'}",
    "list for a mapping": "data: {rewards: [ExactMatch]}",
    "mapping for a number": "data: {temperature: {value: 1}}",
    "scalar for a section": "data: train.jsonl",
    "number for a list": "model: {freeze: 3}",
    "null for a number": "data: {group_size: null}",
    "unknown objective": "model: {objective: GSOP}",
    "unknown class path": "model: {objective: {class_path: GSOP}}",
    "unknown reward": "data: {rewards: {correct: MathVerifer}}",
    "unknown advantages": "data: {advantages: Normal}",
    "unknown rollouts": "data: {rollouts: VLLM}",
    "unknown old policy": "model: {old_policy: Cached}",
    "unknown curriculum": "data: {curriculum: Easy}",
    "misspelt parameter": "model: {objective: {class_path: GSPO, init_args: {cliplow: 0.1}}}",
    "parameter of another class": "model: {objective: {class_path: GSPO, init_args: {tau_pos: 1.0}}}",
    "parameter beside class_path": "model: {objective: {class_path: GSPO, clip_low: 0.1}}",
    "parameter of no class": "model: {objective: {init_args: {cliplow: 0.1}}}",
    "wrong type of a parameter": "model: {objective: {class_path: GSPO, init_args: {clip_low: small}}}",
    "parameter of a dotted class": (
        "data: {rollouts: {class_path: gspo_lightning.rollouts.VLLMServer, init_args: {url: x}}}"
    ),
    "zero responses": "data: {group_size: 0}",
    "temperature of zero": "data: {temperature: 0}",
    "rank of zero": "model: {lora: {r: 0}}",
    "clip above its interval": "model: {objective: {class_path: GSPO, init_args: {clip_low: 1.0}}}",
    "negative coefficient": "model: {objective: {class_path: GSPO, init_args: {kl_coef: -0.1}}}",
    "share above 1": "data: {rollouts: {class_path: GroupedSampler, init_args: {compact_at: 1.5}}}",
    "negative samples": "data: {evaluation: {samples: 0}}",
    "no such choice": "model: {layout: dense}",
    "no such dtype": "model: {dtype: fp8}",
    "wrong choice of a component": "model: {lora: {base: 8bit}}",
    "size above its range": "data: {train: {class_path: CalculatorTask, init_args: {size: 50001}}}",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_config_is_not_valid(text: str) -> None:
    assert len(faults(text)) >= 1
    assert yaml.safe_load(text)


RIGHT = {
    "a dotted class": "model: {objective: my.objectives.Mine}",
    "a dotted class with parameters": "model: {objective: {class_path: my.Mine, init_args: {anything: 1}}}",
    "a name of a plug-in": "{plugins: [mine.py], data: {rewards: {correct: Mine}}}",
    "parameters of an overlay": "model: {objective: {init_args: {clip_low: 0.1}}}",
    "a rate without a point": "model: {optimizer: {init_args: {lr: 1e-5}}}",
    "a whole number for a number": "data: {temperature: 1}",
    "nothing": "{}",
    "a word for true or false": "model: {routing_replay: off}",
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_config_is_valid(text: str) -> None:
    assert faults(text) == []


@pytest.mark.thorough
def test_a_plugin_is_named_where_it_is_imported(tmp_path: Path) -> None:
    plugin = tmp_path / "named_in_schema.py"
    plugin.write_text(
        "from gspo_lightning.rewards import Reward\n"
        "class NamedInSchema(Reward):\n"
        '    """Mine.\n\n    Args:\n        most: characters, >= 1.\n    """\n'
        "    def __init__(self, most: int = 3) -> None: ...\n"
        "    def score(self, completion: str) -> float: return 0.0\n"
    )
    argv = [sys.executable, "-m", "gspo_lightning", "schema", "--plugins", str(plugin)]
    shown = json.loads(subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    schema = jsonschema.Draft7Validator(shown)
    assert faults("data: {rewards: {mine: NamedInSchema}}", schema) == []
    assert faults("data: {rewards: {mine: NamedInSchema}}")
    wrong = "data: {rewards: {mine: {class_path: NamedInSchema, init_args: {most: 0}}}}"
    assert [fault for fault in faults(wrong, schema) if "mine" in fault]


def stated() -> list[Any]:
    """Every range that a registered component states, with a value just outside and one at the boundary."""
    found = []
    for kind in registry.KINDS:
        for name, cls in registry.components(kind).items():
            if not cls.__module__.startswith("gspo_lightning."):
                continue
            texts, hints = descriptions(cls), parameters(cls)
            for parameter in registry.parameters(cls):
                number = {int, float} & set(members(hints[parameter.name]))
                for word, limit in bounds(texts.get(parameter.name, "")).items() if number else ():
                    low = word.endswith("inimum")
                    outside = limit if "xclusive" in word else limit - 1 if low else limit + 1
                    found.append(pytest.param(cls, parameter.name, outside, id=f"{name}.{parameter.name} {word}"))
    return found


REQUIRED: dict[str, dict[str, Any]] = {
    "DrGRPO": {"max_response_tokens": 8}, "LLMJudge": {"url": "http://localhost:1", "model": "m", "rubric": {"a": "b"}},
    "Segment": {"by": "length"},
}  # fmt: skip


@pytest.mark.parametrize(("cls", "name", "outside"), stated())
def test_a_stated_range_is_kept_by_the_constructor(cls: type[Any], name: str, outside: float) -> None:
    """So that an editor and a run agree on what is out of range."""
    with pytest.raises(ValueError, match=name):
        cls(**(REQUIRED.get(cls.__name__, {}) | {name: outside}))
