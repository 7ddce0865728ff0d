"""A mistake in a plug-in is two lines with file, line, class and method, whatever kind of plug-in it is."""

from __future__ import annotations

import hashlib
import textwrap
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs

SOURCE = """
    from gspo_lightning.rollouts import GroupedSampler
    class NAME(GroupedSampler):
        def generate(self, policy, prompts, **options):
            groups = super().generate(policy, prompts, **options)
            BODY
"""
ENVIRONMENT = """
    from gspo_lightning.rollouts.environments import Environment
    class NAME(Environment):
        def reset(self, prompt):
            return []
        def step(self, completion):
            BODY
"""
OBJECTIVE = """
    from gspo_lightning.objectives import GSPO
    class NAME(GSPO):
        def term(self, *arguments):
            BODY
"""
ADVANTAGES = """
    from gspo_lightning.loop.advantages import GroupNormalised
    class NAME(GroupNormalised):
        def __call__(self, *arguments, **more):
            BODY
"""
PROMPTS = """
    from gspo_lightning.data.prompts import PromptSet
    class NAME(PromptSet):
        def records(self):
            BODY
"""
REWARD = """
    from gspo_lightning.rewards import Reward
    class NAME(Reward):
        where = "WHERE"
        def score(self, completion: str) -> float:
            BODY
"""
CONSTRUCTOR = """
    from gspo_lightning.rewards import Reward
    class NAME(Reward):
        def __init__(self):
            BODY
        def score(self, completion: str) -> float:
            return 0.0
"""
CALLBACK = """
    from lightning.pytorch.callbacks import Callback
    class NAME(Callback):
        def on_train_batch_end(self, trainer, module, *more):
            BODY
"""
ROLLOUTS, TALKS = "--data.rollouts=NAME", "--data.rollouts=EnvironmentRollouts --data.rollouts.environment=NAME"
SCORES = '--data.rewards={"r":"NAME"}'
MISTAKES = {
    "a source that raises": (SOURCE, "raise KeyError('oops')", ROLLOUTS, 7, "generate", "raised KeyError: 'oops'"),
    "a source that forgets": (SOURCE, "return groups[1:]", ROLLOUTS, 5, "generate", "returned 15 groups for 16 prompts"),
    "a source in disorder": (SOURCE, "return groups[::-1]", ROLLOUTS, 5, "generate", "where one to prompt 0 belongs"),
    "a source of nothing": (SOURCE, "pass", ROLLOUTS, 5, "generate", "returned None"),
    "an environment": (ENVIRONMENT, "return 'hello'", TALKS, 7, "step", "returned 'hello'; it must be (messages, reward"),
    "an objective": (OBJECTIVE, "return [].foo", "--model.objective=NAME", 6, "term", "raised AttributeError: 'list'"),
    "advantages": (ADVANTAGES, "raise IndexError('x')", "--data.advantages=NAME", 6, "__call__", "raised IndexError: x"),
    "prompts that raise": (PROMPTS, "return {}['x']", "--data.train=NAME", 6, "records", "raised KeyError: 'x'"),
    "prompts of texts": (PROMPTS, "return ['1+1:'] * 9", "--data.train=NAME", 5, "records", "returned a str as record 1"),
    "empty prompts": (PROMPTS, "return [{'prompt': ''}]", "--data.val=NAME", 5, "records", "record 1: 'prompt' must be"),
    "a reward": (REWARD, "return [].foo", SCORES, 7, "score", "raised AttributeError: 'list' object has no attribute"),
    "a reward's value": (REWARD, "return 'good'", SCORES, 6, "score", "returned 'good', which is not a number"),
    "a constructor": (CONSTRUCTOR, "self.x = {}['abc']", SCORES, 6, "__init__", "raised KeyError: 'abc'"),
    "a constructor's value": (CONSTRUCTOR, "int('abc')", SCORES, 6, "__init__", "raised ValueError: invalid literal"),
    "a callback": (CALLBACK, "raise ValueError('no')", "CALLBACK", 6, "on_train_batch_end", "raised ValueError: no"),
}  # fmt: skip


def written(folder: Path, template: str, body: str) -> tuple[Path, str]:
    digest = hashlib.sha256((template + body).encode()).hexdigest()[:6]
    file, name = folder / f"plug_{digest}.py", f"Plug{digest}"
    code = textwrap.dedent(template).replace("NAME", name).replace("BODY", body).replace("WHERE", "worker")
    file.write_text(code.replace("\nclass", "\n\nclass"))
    return file, name


def run(folder: Path, template: str, body: str, flags: str, *more: str) -> tuple[int, str]:
    """Exit code, and ``file: Class`` of the plug-in."""
    file, name = written(folder, template, body)
    module = f"gspo_plugin_{file.stem}_{hashlib.sha256(bytes(file.resolve())).hexdigest()[:8]}"
    callback = f'--trainer.callbacks=[{{"class_path": "{module}.{name}"}}]'
    given = [flag.replace("NAME", name) for flag in flags.replace("CALLBACK", callback).split(" --")]
    given = [flag if flag.startswith("--") else f"--{flag}" for flag in given]
    options = ["--model.cold_start=null", f"--trainer.default_root_dir={folder / 'root'}", f"--plugins={file}"]
    code = main(["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, *options, *given, *more])
    return code, f"{file}:LINE, in {name}."


@pytest.mark.thorough(
    "a callback",
    "a reward",
    "a source in disorder",
    "a source of nothing",
    "a source that forgets",
    "a source that raises",
    "an environment",
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_first_and_last_line_say_where_and_what(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, body, flags, line, method, words = MISTAKES[mistake]
    code, place = run(tmp_path, template, body, flags)
    assert code == 2
    error = capsys.readouterr().err
    place = place.replace("LINE", str(line)) + method
    first, last = error[error.index("error: ") :].strip().splitlines()
    assert place in last
    assert words in first
    assert place in first or first.startswith("error: rewards.r: ")
    assert "Traceback" not in error
    assert "did not expect" not in error


def test_the_plugins_own_frames_are_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "return self.help()\n    def help(self):\n        return {}['there']"
    code, _ = run(tmp_path, PROMPTS, body, "--data.train=NAME", "--traceback")
    assert code == 2
    error = capsys.readouterr().err
    trace = error[error.index("Traceback") : error.index("error: ")]
    assert trace.count("  File ") == 2
    assert "return self.help()" in trace
    assert "return {}['there']" in trace
    assert "gspo_lightning/" not in trace.replace(str(tmp_path), "")
