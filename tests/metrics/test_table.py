from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gspo_lightning.metrics.table import METRICS, lookup, main, markdown
from tests import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"
LOGGED = """
reward/mean reward/std reward/parts/correct reward/dead_groups reward/missing response/length response/terminated
response/truncated ratio/mean ratio/std ratio/log_sequence_mean ratio/log_sequence_std ratio/outside_band ratio/clamped
clip/tokens clip/sequences clip/low clip/high clip/tokens_positive clip/tokens_negative clip/zero_gradient_tokens
kl/old_new_k1 kl/old_new_k3 policy/entropy loss optim/gradient_norm optim/lr data/iteration data/tokens_per_update
data/micro_batches noise/sampler_logprob_gap noise/sampler_sequence_gap throughput/generated_tokens_per_s
throughput/trained_tokens_per_s time/rollout_s time/reward_s time/update_s val/accuracy val/pass@8 val/reward
val/response_length val/terminated ratio/histogram samples moe/changed_choices moe/changed_experts
moe/changed_over_iteration moe/router_confidence moe/load_max_violation moe/load_entropy moe/idle_experts
"""


@pytest.mark.parametrize("tag", LOGGED.split())
def test_every_tag_of_a_run_is_defined(tag: str) -> None:
    assert lookup(tag) is not None


def test_templates_match_what_they_stand_for_and_nothing_else() -> None:
    assert lookup("reward/parts/a/b").tag == "reward/parts/<name>"  # type: ignore[union-attr]
    assert lookup("val/pass@64").tag == "val/pass@<k>"  # type: ignore[union-attr]
    for unknown in ("val/pass@", "val/pass@k", "reward/parts/", "reward/meanX", "xreward/mean", "lossy"):
        assert lookup(unknown) is None


def test_tags_are_unique_and_every_field_says_something() -> None:
    tags = [spec.tag for spec in METRICS]
    assert len(set(tags)) == len(tags)
    for spec in METRICS:
        for text in (spec.definition, spec.unit, spec.healthy, spec.what_to_do, spec.group):
            assert text.strip() == text
            assert text
        assert spec.what_to_do.endswith("."), spec.tag
        assert len(spec.healthy.split()) > 1 or spec.healthy == "steady", spec.tag


def test_groups_are_contiguous_so_that_each_has_one_heading() -> None:
    headings = re.findall(r"^## (.+)$", markdown(), flags=re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_every_row_has_the_cells_of_its_header() -> None:
    table_rows = [line for line in markdown().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table_rows} == {6}
    assert len([line for line in table_rows if line.startswith("| `")]) == len(METRICS)


def test_document_is_in_sync_with_the_table() -> None:
    assert DOCUMENT.read_text() == markdown(), "run: python -m gspo_lightning.metrics.table"


def test_document_explains_what_is_misread_most() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert "The loss is 0" in text
    assert "two orders of magnitude more than GRPO" in text


def test_command_writes_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "metrics.md"
    assert main([str(path)]) == 0
    assert path.read_text() == markdown()
    assert str(path) in capsys.readouterr().out


def test_definitions_are_read_without_torch() -> None:
    code = "import sys, gspo_lightning.metrics.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
