"""Workloads and traces in the JSON of flashinfer-bench: there and back, from elsewhere, and what is refused where."""

import json
import math

import pytest
import torch

from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check, drawn
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.guests import known
from attnoracle.oracle.interchange import Definition, Trace, add, evaluated, jobs, write
from attnoracle.oracle.interchange.evaluate import WORST
from attnoracle.oracle.interchange.reading import At, document, lines
from attnoracle.oracle.judge.units import LN2

CASES = {
    "dsa_paged": "sparse_mqa:tiny:h4:q5:k128:top16:bf16:randn:strided:invalid:s0",
    "mla_ragged": "dense_mha:tiny:h2:q5,0,3:k5,0,3:bf16:randn:contiguous:-:s0",
    "dense_mha": "dense_mha:tiny:h2:q5,3:k9,3:fp16:randn:contiguous:-:s0",
    "masked_mha": "masked_mha:tiny:h2:q5:k9:top4:bf16:randn:contiguous:-:s0",
    "sparse_mqa": "sparse_mqa:tiny:h4:q5:k128:top16:bf16:randn:contiguous:lengths+sink:s0",
    "indexer_scores": "indexer_scores:tiny:h4:q5:k9:bf16:randn:contiguous:-:s0",
    "topk_select": "topk_select:tiny:h1:q4,5:k90,60:top17:fp32:randn:contiguous:-:s1",
    "merge_lse": "merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s0",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exchange")
    write(folder, [Case.parse(case) for case in CASES.values()])
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return {job.form.op_type: job for job in jobs(folder)}


def test_a_case_is_written_and_read_back_to_the_bit(folder, found):
    assert {op_type: job.case.id for op_type, job in found.items()} == CASES
    assert all(job.ours for job in found.values())
    for path in [*folder.glob("definitions/*/*.json")]:
        one = Definition.parse(document(path))
        assert one.as_dict() == json.loads(path.read_text()) and path.stem == one.name
    (path,) = folder.glob("workloads/dsa_paged/*.jsonl")
    assert [Trace.parse(at).as_dict() for at in lines(path)] == [json.loads(path.read_text())]
    before = path.read_text()
    write(folder, [Case.parse(CASES["dsa_paged"])])
    assert path.read_text() == before, "a workload that is there is not there twice"


@pytest.mark.parametrize("op_type", CASES)
def test_the_reference_that_a_definition_holds_is_that_of_the_operator(found, op_type):
    """The sources for others' tools are run here as those tools run them."""
    job = found[op_type]
    space = {}
    exec(compile(job.definition.reference, "reference", "exec"), space)
    from attnoracle import reference

    call = drawn(job.case, "cpu").kwargs()
    outputs = space["run"](**job.form.theirs(call))
    right = getattr(reference, job.form.operator)(**call)
    outputs, right = (x if isinstance(x, tuple) else (x,) for x in (outputs, right))
    if op_type in ("dsa_paged", "mla_ragged"):
        outputs = outputs[0].float(), outputs[1] * LN2
    for seen, due in zip(outputs, right, strict=True):
        assert torch.allclose(seen.double(), due.double(), rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.fixture
def elsewhere(folder, found, tmp_path):
    """A workload as another tool writes it: a name of its own, some inputs at random, and no case in its files."""
    job = found["mla_ragged"]
    definition = job.definition.as_dict()
    (tmp_path / "definitions").mkdir()
    (tmp_path / "workloads").mkdir()
    (tmp_path / "definitions" / "d.json").write_text(json.dumps(definition))
    from safetensors.torch import save_file

    save_file({"cu": torch.tensor([0, 40, 64], dtype=torch.int32)}, tmp_path / "x.safetensors")
    inputs = {name: {"type": "random"} for name in "qkv"}
    inputs |= {"seq_indptr": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "cu"}}
    inputs |= {"sm_scale": {"type": "scalar", "value": 0.15}}
    workload = {"uuid": "one", "axes": {"total_tokens": 64, "len_indptr": 3}, "inputs": inputs}
    trace = {"definition": definition["name"], "workload": workload, "solution": None, "evaluation": None}
    (tmp_path / "workloads" / "w.jsonl").write_text("\n" + json.dumps(trace) + "\n")
    return tmp_path


def test_a_workload_from_elsewhere_is_judged_and_a_wrong_kernel_fails_on_it(elsewhere, make_implementation):
    (job,) = jobs(elsewhere)
    assert not job.ours and (job.case.q_lens, job.case.heads, job.case.geometry) == ((40, 24), 2, "tiny")
    right = known.find("dense_mha/eager")
    verdict = check(job.case, right, draw=job.draw)
    assert verdict.status == "PASS"
    record = evaluated(job, right, verdict, "cpu")
    assert record.status == "PASSED" and 0.0 < record.errors[1] < 0.05 and min(record.milliseconds) > 0.0

    def off(**inputs):
        out, lse = right.load()(**inputs | {"scale": inputs["scale"] * 1.02})
        return out, lse

    wrong = make_implementation("dense_mha/off", load=lambda: off)
    failed = check(job.case, wrong, draw=job.draw)
    assert failed.status == "FAIL"
    trace = Trace(job.definition.name, job.workload, wrong.name, evaluated(job, wrong, failed, "cpu"))
    assert trace.evaluation.status == "INCORRECT_NUMERICAL" and trace.evaluation.milliseconds is None
    path = elsewhere / "traces" / "t.jsonl"
    add(path, [trace])
    add(path, [trace])
    assert [Trace.parse(at) for at in lines(path)] == [trace]


@pytest.mark.parametrize(
    ("status", "findings", "expected"),
    [
        ("ERROR", (), "RUNTIME_ERROR"),
        ("FAIL", ("out has dtype torch.float32, expected torch.bfloat16",), "INCORRECT_DTYPE"),
        ("FAIL", ("out has shape [1], expected [2]",), "INCORRECT_SHAPE"),
        ("WEAK", (), None),
        ("UNSUPPORTED", (), None),
    ],
)
def test_what_a_verdict_is_called_there(found, make_verdict, make_implementation, status, findings, expected):
    from attnoracle.oracle.verdict import Finding

    told = tuple(Finding("structure", words, True) for words in findings)
    verdict = make_verdict(status, "merge_lse/x", reason="why", findings=told)
    record = evaluated(found["merge_lse"], make_implementation("merge_lse/x"), verdict, "cpu")
    assert (record and record.status) == expected


def test_a_kernel_that_returns_nan_has_the_largest_error_there_is(found, make_verdict, make_implementation):
    def nan(out_a, lse_a, out_b, lse_b):
        return out_a * math.nan, lse_a.float()

    one = make_implementation("merge_lse/nan", load=lambda: nan)
    record = evaluated(found["merge_lse"], one, make_verdict("FAIL", "merge_lse/nan"), "cpu")
    assert record.errors == (WORST, WORST)
    assert json.loads(json.dumps(record.as_dict(), allow_nan=False))["correctness"]["max_absolute_error"] == WORST


def _changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("workloads/w.jsonl", '"uuid": "one"', '"uuid": 1', "w.jsonl:2: workload.uuid: expected a string"),
        (
            "workloads/w.jsonl",
            '"total_tokens": 64',
            '"total_tokens": -1',
            "workload.axes.total_tokens: expected an int",
        ),
        ("workloads/w.jsonl", '"total_tokens": 64, ', "", "workload.axes.total_tokens: expected this field"),
        ("workloads/w.jsonl", "scalar", "scaler", "workload.inputs.sm_scale.type: expected one of random, scalar"),
        ("workloads/w.jsonl", "0.15", "NaN", "workload.inputs.sm_scale.value: expected a finite number, got NaN"),
        ("workloads/w.jsonl", "x.safetensors", "../x", "workload.inputs.seq_indptr.path: expected a file inside"),
        ("workloads/w.jsonl", "x.safetensors", "y", "workload.inputs.seq_indptr.path: expected a safetensors file"),
        ("workloads/w.jsonl", '"cu"', '"cv"', "seq_indptr.tensor_key: expected one of cu"),
        (
            "workloads/w.jsonl",
            '"len_indptr": 3',
            '"len_indptr": 4',
            "seq_indptr: expected int32 [4], and it is int32 [3]",
        ),
        (
            "workloads/w.jsonl",
            '"solution"',
            '"solutions"',
            "w.jsonl:2: solutions: expected one of definition, workload",
        ),
        ("workloads/w.jsonl", "mla_ragged_pre", "mla_pre", "w.jsonl:2: definition: expected the name of a definition"),
        ("workloads/w.jsonl", '{"type": "random"}, "k"', '{"type": "scalar", "value": 1}, "k"', "inputs.q"),
        ("definitions/d.json", '"const"', '"cons"', "d.json: axes.num_qo_heads.type: expected one of const, var"),
        ("definitions/d.json", '"bfloat16"', '"bf16"', "d.json: inputs.q.dtype: expected one of float64"),
        (
            "definitions/d.json",
            '"head_dim_qk"]',
            '"head_dim"]',
            "d.json: inputs.q.shape[2]: expected one of total_tokens",
        ),
        ("definitions/d.json", '"mla_ragged",', '"gemm",', "d.json: op_type: expected one of dsa_paged, mla_ragged"),
        ("definitions/d.json", '"value": 48', '"value": 40', "no model with its dims is known"),
        ("definitions/d.json", '"axes"', '"axis"', "d.json: axes: expected this field"),
        ("definitions/d.json", '{"name"', '{{"name"', "d.json: it: expected JSON"),
    ],
)
def test_errors_say_field_and_file(elsewhere, file, old, new, words):
    _changed(elsewhere / file, old, new)
    with pytest.raises(BadInput) as told:
        list(jobs(elsewhere))
    assert words in str(told.value)


def test_what_the_format_cannot_hold_and_a_folder_without_anything(tmp_path):
    with pytest.raises(BadInput, match="the format has no words for this call"):
        write(tmp_path, [Case.parse("sparse_mqa:deepseek-v3.2:h4:q2:k64:top16:bf16:randn:contiguous:ds-mla:s0")])
    with pytest.raises(BadInput, match=r"expected definitions/\*\*/\*.json"):
        list(jobs(tmp_path))


def test_an_evaluation_lacks_what_its_status_asks_for(tmp_path):
    at = At({"status": "PASSED", "correctness": None}, tmp_path / "t.jsonl", 3, "evaluation")
    from attnoracle.oracle.interchange import Evaluation

    with pytest.raises(BadInput, match=r"t.jsonl:3: evaluation.correctness: expected an object, got null"):
        Evaluation.parse(at)
