"""The measured figures: the committed file, the table made from it, and the truth that they are measured by."""

import json

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.diagnose.dictionary import catalogue, numeric
from attnoracle.oracle.diagnose.hypothesis import STAGES
from attnoracle.oracle.diagnose.measure import SCHEMA, diagnosed, load_journal, summary
from attnoracle.oracle.diagnose.page import PAGE, block, recorded
from attnoracle.oracle.diagnose.truth import IDEAS, MARKS, ideas_of, stage_of_fault
from attnoracle.oracle.faults import FAULTS, fault

FAMILIES = (
    "softmax scale", "keys read", "rows moved", "rows constant", "LSE base or offset", "parts of the LSE", "sink logit",
    "heads summed", "slope of the ReLU", "score bits compared", "short rows", "window end", "ties stored",
    "merge weights", "tensor misread",
    "base of a side's LSE", "base of a side's weight",
    "key scale of a block", "format of q.k of a head", "format of the accumulator",
    "format of probabilities", "rows past a request", "dims of q.k", "factor", "not written", "stray write",
    # quantised caches and the paged indexer
    "scales of a cache row", "tile scale on one side", "tiles of a cache row", "rope of a cache row",
    "cache row address", "rows of query scales", "rows of compressed scores", "rows of weights", "rows of queries",
    "end of a query", "row of the block table", "scale of a key on a page", "codes of a key on a page",
    "page that is read",
    # layout operators, with readings of their judges
    "rule of scales", "maximum of a block", "exponent byte", "blocks misread", "offset that wraps", "bytes of a row",
    "bytes of a page", "scale of a tile", "rows not written", "request of a token", "start of a chunk",
    "missing page", "invalid entry", "valid count", "position before a chunk", "values were multiplied by 1 / scale",
    "every chunk began at position 0", "-1 became 0",
)  # fmt: skip


def test_the_committed_file_is_whole_and_its_figures_follow_from_its_lines():
    found = recorded()
    assert found["schema"] == SCHEMA
    names = {one.name for one in FAULTS}
    assert {trial["fault"] for trial in found["faults"]} <= names
    assert found["summary"] == json.loads(json.dumps(summary(found["faults"], found["shrunk"], found["layer"])))
    for entry in (*found["faults"], *found["shrunk"]):
        Case.parse(entry["case"])


def test_the_page_shows_the_committed_figures():
    assert block(recorded()) in PAGE.read_text(encoding="utf-8")


def test_truth_names_what_there_is():
    names = {one.name for one in FAULTS}
    assert set(MARKS) <= names
    assert {f"triton-{name}" if f"triton-{name}" in names else name for name in IDEAS} <= names
    entries = {entry.name for one in FAULTS for entry in catalogue(one.operator)}
    assert {idea for ideas in IDEAS.values() for idea in ideas} <= entries | set(FAMILIES)


@pytest.mark.parametrize("operator", ["dense_mha", "sparse_mqa", "indexer_scores", "topk_select", "merge_lse"])
def test_every_fault_that_changes_numbers_is_in_the_dictionary_at_a_stage(operator):
    entries = {entry.name: entry for entry in catalogue(operator)}
    for one in FAULTS:
        if one.operator == operator and numeric(one) and one.name not in MARKS:
            assert entries[one.name].stage == stage_of_fault(one) and entries[one.name].stage in STAGES
            assert ideas_of(one) == (one.name,)


def test_one_fault_is_measured_and_journalled(tmp_path):
    case = Case.parse("merge_lse:tiny:h2:q6:k6:bf16:randn:contiguous:-:s0")
    trial = diagnosed(fault("merge-larger-side-wins"), case, {}, thorough=True)
    assert trial.rank == 1 and trial.stage_right and trial.explained == 1.0
    (tmp_path / "diagnosis-0.jsonl").write_text('{"fault": "a"}\n{"fault": "a"}\n')
    (tmp_path / "diagnosis-1.jsonl").write_text('{"fault": "b"}\n')
    assert [entry["fault"] for entry in load_journal(tmp_path, "diagnosis")] == ["a", "b"]
