"""What is not there is said before torch is imported; a hub that does not answer is asked once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.fit.absent import check_named
from gspo_lightning.commands.fit.component_names import component_names
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.registry import KINDS, components
from gspo_lightning.data.prompts import HubPrompts
from gspo_lightning.policy.hub import check_reachable
from gspo_lightning.policy.load.loading import load_tokenizer
from gspo_lightning.policy.load.model_settings import ModelSettings

CODE = """
import contextlib, io, json, sys
from gspo_lightning.cli import main
found = []
for argv in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        code = main(argv)
    found.append([code, error.getvalue(), "torch" in sys.modules])
print(json.dumps(found))
"""


def test_missing_files_and_components_are_refused_before_importing_torch(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("plugins: [nowhere/plugin.py]\n")
    (tmp_path / "broken.yaml").write_text("data: {group_size: 4\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "records.jsonl").write_text("{}\n")
    hub = tmp_path / "hub.yaml"
    hub.write_text("model: {name_or_path: someone/thing}\n")
    cases = {
        "nope.ckpt does not exist": ["export", "nope.ckpt", "new"],
        "give another folder, or --overwrite": ["export", "nope.ckpt", "out"],
        "'nope.yaml' does not exist": ["fit", "--config", "nope.yaml"],
        "'nope2.yaml' does not exist": ["predict", "--config=nope2.yaml"],
        "'nope3.yaml' does not exist": ["plan", "--config=nope3.yaml"],
        "not YAML": ["fit", "--config=broken.yaml"],
        "'nowhere/plugin.py' does not exist": ["fit", f"--config={config}"],
        "'plugins/nope.py' does not exist": ["validate", "--plugins=plugins/nope.py"],
        "'nope/last.ckpt' does not exist": ["fit", "--ckpt_path=nope/last.ckpt"],
        "model.name_or_path: the folder './nope' does not exist": ["fit", "--model.name_or_path=./nope"],
        "model.name_or_path: the file 'nope.gguf' does not exist": ["fit", "--model.name_or_path", "nope.gguf"],
        "data.val: the prompt file 'recrds.jsonl' does not exist; did you mean records.jsonl?": [
            "fit",
            "--config=quickstart",
            "--data.val=recrds.jsonl",
        ],
        "model.objective: 'GSPOO' is not registered; did you mean GSPO?": ["fit", "--model.objective=GSPOO"],
        "data.rewards.correct: 'MathVerifer' is not registered; did you mean MathVerifier?": [
            "fit",
            "--config=quickstart",
            "--data.rewards.correct=MathVerifer",
        ],
        "data.rollouts: 'VLLMEngin' is not registered; did you mean VLLMEngine?": ["fit", "--data.rollouts=VLLMEngin"],
        "model.name_or_path: 'someone/thing' is not here": ["fit", f"--config={hub}"],
        "model.name_or_path: 'gpt2' is not here": ["validate", "--model.name_or_path", "gpt2"],
        "data.train: 'someone/records' is not here": ["fit", "--data.train=someone/records:main:test"],
    }
    environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(list(cases.values()))],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    for words, (code, error, torch) in zip(cases, json.loads(done.stdout), strict=True):
        assert (code, torch) == (2, False), (words, error)
        assert words in error
        assert "Traceback" not in error


@pytest.mark.parametrize("argument", [f"--data.train={'x' * 5000}.jsonl", f"--model.name_or_path=./{'x' * 5000}"])
def test_a_text_that_is_too_long_for_a_path_does_not_exist(argument: str) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check_named([argument])


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_known_by_name_before_they_are_imported(kind: str) -> None:
    own = [name for name, cls in components(kind).items() if cls.__module__.startswith("gspo_lightning.")]
    assert list(component_names(kind)) == own


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--data.rewards.correct=MathVerifer"], "data.rewards.correct"),
        (["--data.rewards={correct: {class_path: MathVerifer, init_args: {}}}"], "data.rewards.correct"),
        (["--data.rollouts.class_path=GroupdSampler"], "data.rollouts"),
        (["--data.rollouts={class_path: GroupdSampler}"], "data.rollouts"),
        (["--data.val.class_path", "WordProblem"], "data.val"),
        (["--model.old_policy=Residnt", "--model.objective=GSPO"], "model.old_policy"),
        (["--data.rewards.correct=MathVerifier", "--data.rewards.brief=Brief"], "data.rewards.brief"),
    ],
)
def test_a_misspelt_component_is_refused_with_its_field(arguments: list[str], field: str) -> None:
    with pytest.raises(UserError, match="is not registered; ") as caught:
        check_named(arguments)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data.rewards.correct=MathVerifer", "--data.rewards.correct=MathVerifier"],
        ["--data.rewards.correct=MathVerifer", "--data.rewards={other: FormatReward}"],
        ["--model.objective=GSPOO", "--model.objective={class_path: GSPO}"],
        ["--data.advantages=null", "--data.rollouts=plugins.mine.Source"],
        ["--data.rewards.correct.class_path=FunctionReward", "--data.rewards.correct.init_args.function=plugins.x.fn"],
        ["--model.objective.clip_low=0.1"],
    ],
)
def test_name_check_skips_overridden_arguments_and_dotted_paths(arguments: list[str]) -> None:
    check_named(arguments)


def test_a_component_of_a_plug_in_is_left_to_the_parser(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "early_plugin.py"
    plugin.write_text(
        "from gspo_lightning.rewards import Reward\n\n\n"
        "class EarlyReward(Reward):\n"
        "    def score(self, completion: str) -> float:\n"
        "        return 1.0\n"
    )
    check_named([f"--plugins={plugin}", "--data.rewards.correct=EarlyReward"])
    misspelt = [f"--plugins={plugin}", "--data.rewards.correct=EarlyRewrd"]
    check_named(misspelt)
    assert main(["fit", "--config=quickstart", *misspelt]) == 2
    assert "EarlyReward" in capsys.readouterr().err


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As outside of the tests, with nothing in the cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "sets"))
    check_reachable.cache_clear()


@pytest.fixture(params=["closed", "silent"])
def endpoint(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, online: None
) -> Iterator[list[socket.socket]]:
    """A port that nobody listens on, or one that accepts and never answers; the connections that were made."""
    connections: list[socket.socket] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        if request.param == "closed":
            server.close()
            yield connections
            return
        server.listen()

        def accept() -> None:
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield connections
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def test_a_hub_that_gives_no_answer_is_asked_once(endpoint: list[socket.socket]) -> None:
    with pytest.raises(UserError, match=r"'someone/thing' is not here, and http://127.* gives no answer") as caught:
        load_tokenizer(ModelSettings(name_or_path="someone/thing"))
    assert caught.value.field == "model.name_or_path"
    assert len(endpoint) <= 1


def test_a_config_is_printed_without_asking_a_hub(
    endpoint: list[socket.socket], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config=quickstart", "--model.name_or_path=someone/thing", "--print_config"]) == 0
    assert "name_or_path: someone/thing" in capsys.readouterr().out
    assert not endpoint


def test_a_data_set_that_nobody_can_be_asked_about(endpoint: list[socket.socket]) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="gives no answer"):
        HubPrompts("someone/records").records()
    assert len(endpoint) <= 1


def test_hub_is_not_asked_about_cached_repositories(
    online: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "hub" / "models--someone--thing").mkdir(parents=True)
    (tmp_path / "sets" / "someone___records").mkdir(parents=True)
    check_reachable("model.name_or_path", "someone/thing", "model")
    check_reachable("data.train", "someone/records", "dataset")
    with pytest.raises(UserError, match="gives no answer"):
        check_reachable("data.train", "someone/thing", "dataset")
