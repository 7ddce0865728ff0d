"""What is said about a config that changed since the checkpoint, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.resume import Fingerprint, Resumption, changes, forbidden


def test_values_are_compared_by_dotted_name() -> None:
    before = {"data": {"group_size": 8, "rewards": {"correct": {"class_path": "A"}}}, "plugins": []}
    now = {"data": {"group_size": 8, "rewards": {"correct": {"class_path": "B"}, "short": {"class_path": "C"}}}}
    assert {str(c) for c in changes(before, now)} == {
        "data.rewards.correct.class_path: A -> B",
        "data.rewards.short.class_path: (not set) -> C",
        "plugins: [] -> (not set)",
    }


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("trainer.max_epochs", True), ("trainer.logger", True), ("trainer.devices", True),
        ("data.evaluation.samples", True), ("data.max_tokens_per_micro_batch", True),
        ("data.group_size", False), ("model.objective.init_args.clip_low", False), ("seed_everything", False),
        ("trainer.gradient_clip_val", False), ("data.max_prompt_tokens", False), ("data.validate", False),
    ],
)  # fmt: skip
def test_resume_allows_harmless_changes_and_forbids_others(name: str, harmless: bool) -> None:
    tree: dict[str, object] = {}
    node = tree
    *path, last = name.split(".")
    for part in path:
        node = node.setdefault(part, {})  # type: ignore[assignment]
    node[last] = 1
    assert (not forbidden(changes({}, tree))) == harmless


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (None, "32-true", None), ("32", None, None), ("bf16", "bf16-mixed", None), (32, "32-true", None),
        (None, "bf16-mixed", "trainer.precision: 32-true -> bf16-mixed"),
        ("bf16-mixed", None, "trainer.precision: bf16-mixed -> 32-true"),
    ],
)  # fmt: skip
def test_precisions_are_compared_by_lightnings_own_words(before: object, now: object, change: str | None) -> None:
    found = changes({"trainer": {"precision": before}}, {"trainer": {"precision": now}})
    assert [str(c) for c in forbidden(found)] == ([] if change is None else [change])


def resumption(config: dict[str, object], **before: object) -> Resumption:
    return Resumption("run/checkpoints/last.ckpt", before={"config": config, "versions": {"torch": "1"}, **before})


def test_another_meaning_is_refused_unless_allowed() -> None:
    with pytest.raises(UserError, match=r"data.group_size: 8 -> 4.*\n.*--allow_changed_config true"):
        resumption({"data": {"group_size": 8}}).check_config({"data": {"group_size": 4}}, {}, [])
    allowed = {"data": {"group_size": 4}, "allow_changed_config": True}
    resumption({"data": {"group_size": 8}}).check_config(allowed, {}, [])


def test_other_prompts_are_refused_unless_they_are_only_evaluated() -> None:
    def prompts(text: str) -> dict[str, object]:
        seen = Fingerprint()
        seen.add(SimpleNamespace(id=0, text=text, token_ids=(1,), columns={"answer": 3}, media=()))
        return seen.value()

    was = {"train": prompts("a"), "val": prompts("b")}
    resumption({}, data=was).check_prompts({"train": prompts("a"), "val": prompts("c")})
    with pytest.raises(UserError, match=r"data.train: 1 prompts -> 1 \(their content differs\)"):
        resumption({}, data=was).check_prompts({"train": prompts("z"), "val": prompts("b")})


@pytest.mark.parametrize(("before", "now", "noted"), [(2, 4, True), (2, 2, False), (2, None, False), (None, 2, False)])
def test_threads_are_compared_where_both_runs_computed_on_a_cpu(
    before: int | None, now: int | None, noted: bool
) -> None:
    resumed = resumption({}, threads=before)
    assert resumed.check_prompts({}, {}, now)["threads"] == now
    expected = ["threads of a rank: 2 -> 4 (the last digits of results may differ)"] if noted else []
    assert resumed.changed == expected


def test_another_optimizer_class_cannot_take_over_the_state() -> None:
    before = {"model": {"optimizer": {"class_path": "AdamW"}}}
    now = {"model": {"optimizer": {"class_path": "SGD"}}, "allow_changed_config": True}
    with pytest.raises(UserError, match="another class"):
        resumption(before).check_config(now, {}, [])


def test_fingerprints_are_those_that_checkpoints_have() -> None:
    seen = Fingerprint()
    for number, text in enumerate(["1+1:", "2+3:"]):
        seen.add(SimpleNamespace(id=number, text=text, token_ids=(4, 5), columns={"b": None, "a": "2"}, media=()))
    hashed = '[0, "1+1:", [4, 5], {"a": "2", "b": null}][1, "2+3:", [4, 5], {"a": "2", "b": null}]'
    assert seen.value() == {"prompts": 2, "sha256": hashlib.sha256(hashed.encode()).hexdigest()}


def test_a_setting_that_is_younger_than_a_checkpoint_has_changed_if_it_means_something_else() -> None:
    before = {"data": {"group_size": 8}, "model": {"objective": {"class_path": "GSPO"}}}
    now = {**before, "data": {"group_size": 8, "pictures": {"bad": "stop", "urls": False, "max_pixels": None}}}
    assert changes(before, now) == []
    now["data"]["pictures"]["urls"] = True  # type: ignore[index]
    assert [str(c) for c in changes(before, now)] == ["data.pictures.urls: False -> True"]


def test_a_path_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    for folder in ("project/data", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("project")
    folders = (str(tmp_path / "project"), str(tmp_path / "elsewhere"))
    before = {"data": {"train": "data/x.jsonl", "val": ["data/a.jsonl", "data/b.jsonl"], "task": {"name": "x"}}}
    now = {
        "data": {
            "train": str(tmp_path / "link" / "data" / "x.jsonl"),
            "val": ["../project/data/a.jsonl", "../link/data/b.jsonl"],
            "task": {"name": "x"},
        }
    }
    assert changes(before, now, folders) == []
    assert len(changes(before, now)) == 2  # of a run that does not say where it was started
    now["data"]["val"] = ["../project/data/b.jsonl", "../link/data/b.jsonl"]
    assert [change.name for change in changes(before, now, folders)] == ["data.val"]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("plugins.curve.Mine", "gspo_plugin_curve_0a1b2c3d.Mine", True),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "curve.Mine", True),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "gspo_plugin_curve_ffffffff.Mine", True),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "gspo_plugin_curve_ffffffff.Other", False),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "plugins.other.Mine", False),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "gspo_plugin_curve_0a1b2c3d.Hers", False),
        ("gspo_plugin_curve_0a1b2c3d.Mine", "gspo_plugin_curse_ffffffff.Mine", False),
        ("curse.Mine", "gspo_plugin_curve_0a1b2c3d.Mine", False),
        ("gspo_plugin_urve_0a1b2c3d.Mine", "plugins.curve.Mine", False),
        ("plugins.curve.Mine", "other.curve.Mine", False),
    ],
)
def test_a_class_of_a_plug_in_is_known_wherever_its_file_is(before: str, now: str, same: bool) -> None:
    """Its module is named by its place; what the file holds is compared by its checksum."""
    assert (changes({"a": before}, {"a": now}) == []) == same


def test_class_paths_of_before_the_wings_are_no_change() -> None:
    before = {
        "data": {"advantages": {"class_path": "gspo_lightning.advantages.GroupNormalised"}},
        "trainer": {"plugins": [{"class_path": "gspo_lightning.callbacks.AtomicCheckpointIO"}]},
    }
    now = {
        "data": {"advantages": {"class_path": "gspo_lightning.loop.advantages.GroupNormalised"}},
        "trainer": {"plugins": [{"class_path": "gspo_lightning.training.callbacks.AtomicCheckpointIO"}]},
    }
    assert changes(before, now) == []
    other = {"data": {"advantages": {"class_path": "gspo_lightning.advantages.Raw"}}, "trainer": before["trainer"]}
    (change,) = changes(other, now)
    assert not change.harmless


@pytest.mark.parametrize("value", ["train.jsonl", "data/train", "train", ["train.jsonl"]])
def test_a_relative_path_of_another_folder_is_the_same_only_with_the_same_content(
    value: str | list[str], tmp_path: Path
) -> None:
    folders = (str(tmp_path / "a"), str(tmp_path / "b"))
    settings = {"data": {"train": value}}
    file = value if isinstance(value, str) else value[0]
    assert changes(settings, settings, folders) == []  # no such file: a hub id, or a folder that has moved
    for folder in folders:
        path = Path(folder, file)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert changes(settings, settings, folders) == []
    Path(folders[1], file).write_text("[]")
    shown = [str(tmp_path / folder / file) for folder in "ab"]
    found = changes(settings, settings, folders)
    assert [(change.name, change.before, change.now) for change in found] == [("data.train", *shown)]
    assert changes(settings, settings, (folders[0], folders[0])) == []


def test_a_word_is_no_path_of_a_folder_of_its_name(tmp_path: Path) -> None:
    folders = (str(tmp_path / "a"), str(tmp_path / "b"))
    for folder in folders:
        Path(folder).mkdir()
        Path(folder, "train").write_text(folder)
    settings = {"data": {"train": {"init_args": {"split": "train"}}}}
    assert changes(settings, settings, folders) == []
