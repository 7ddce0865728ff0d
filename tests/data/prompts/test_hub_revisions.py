"""A run records the commit of a hub data set, and a resumed run reads that one; a hub on this machine serves both."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gspo_lightning.data.prompts import HubPrompts
from gspo_lightning.data.prompts.hub_revisions import begin, commits_read
from tests.runs import runs
from tests.support.hub import Repository, connect, hub_server

NAME = "me/sums"


def parquet(records: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), file)
    return file.getvalue()


def records(answer: str) -> list[dict[str, str]]:
    return [{"prompt": f"{n}+{n}:", "answer": answer} for n in range(8)]


def upload(repository: Repository, answer: str) -> str:
    return repository.commit(f"answers {answer}", {"data/train-00000-of-00001.parquet": parquet(records(answer))})


@pytest.mark.thorough
def test_a_resumed_run_reads_the_commit_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    with hub_server() as hub:
        connect(hub, tmp_path / "home", monkeypatch)
        for name, value in {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": False, "HF_DATASETS_OFFLINE": False,
                            "HF_DATASETS_CACHE": tmp_path / "cache"}.items():  # fmt: skip
            monkeypatch.setattr(datasets.config, name, value)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        repository = hub.repository(NAME, "datasets")
        first = upload(repository, "1")
        data = [*runs.UNTAUGHT, f"--data.train={NAME}", "--data.val=null", "--data.prompts_per_rollout=4"]
        run = runs.fit(tmp_path, *data, "--trainer.max_epochs=1")
        assert runs.checkpoint(run)["gspo_run"]["datasets"] == {NAME: first}
        second = upload(repository, "2")
        resumed = runs.fit(tmp_path, *data, "--ckpt_path=last")
        assert resumed == run
        assert runs.checkpoint(run)["gspo_run"]["datasets"] == {NAME: first}
        begin({})
        assert [r["answer"] for r in HubPrompts(NAME).records()] == ["2"] * 8
        assert commits_read() == {NAME: second}
        assert [r["answer"] for r in HubPrompts(NAME, revision=first).records()] == ["1"] * 8
        assert commits_read() == {NAME: first}
        begin({NAME: first})
        assert commits_read() == {}
        assert [r["answer"] for r in HubPrompts(NAME).records()] == ["1"] * 8
        train = {"class_path": "HubPrompts", "init_args": {"path": NAME, "revision": second}}
        changed = [*data, f"--data.train={json.dumps(train)}"]
        runs.fit(tmp_path, *changed, "--ckpt_path=last", "--trainer.max_epochs=3", code=2)
    begin({})


def test_without_an_answer_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin({})
    with hub_server() as hub:
        connect(hub, tmp_path, monkeypatch)
        hub.fails = lambda method, path: 500
        from gspo_lightning.data.prompts.hub_revisions import commit_of

        monkeypatch.setattr("huggingface_hub.utils._http._DEFAULT_RETRY_ON_STATUS_CODES", (), raising=False)
        assert commit_of(NAME, None) is None
        assert commit_of(NAME, "v1") == "v1"
    assert commits_read() == {NAME: "v1"}
    begin({})
