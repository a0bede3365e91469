"""The catalogue as a list: names, themes, sources, and how its records refuse what does not fit."""

import re
from collections import Counter

import pytest

from attnoracle.oracle.case import DTYPES, LAYOUTS
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import FAULTS, fault
from attnoracle.oracle.faults.fault import sited
from attnoracle.oracle.faults.simulated import KERNELS
from attnoracle.oracle.inputs.kinds import KINDS
from attnoracle.oracle.inputs.options import OPTIONS
from attnoracle.oracle.suites.reach import REACH

#: Themes of public bug reports about sparse-MLA attention, and reports whose fault must be in the catalogue.
REPORTED = {
    "indexer mathematics": ("transformers#44690", "ATOM#1507", "axolotl#3832"),
    "RoPE styles": ("vllm#28968", "vllm-ascend#7341", "transformers#46842", "ik_llama.cpp#2099"),
    "top-k ties and radix overflow": ("sglang#35257", "b12x#55", "vllm#55314", "sglang#30645"),
    "top-k rows and widths": ("sglang#12582", "sglang#39431"),
    "index buffer": ("vllm#45324", "vllm#36616", "TensorRT-LLM#16290"),
    "routes": ("vllm#52512", "vllm#48611", "sglang#11892", "sglang-jax#1036"),
    "LSE base": ("sglang#40903", "sglang#33064", "flashinfer#4547", "flashinfer#787"),
    "merges and empty rows": ("vllm#27491", "vllm#15492", "vllm#49294", "flashinfer#4452", "sglang#22688"),
    "causal alignment and windows": ("flash-attention#282", "flash-attention#1778", "transformers#39408"),
    "packed masks": ("flashinfer#2201", "text-generation-inference#3324", "flashinfer#1028"),
    "offsets past 2**31": ("flashinfer#3130",),
    "pages and layouts": ("flash-attention#2367", "vllm#50576", "pytorch#182593"),
    "quantisation and scale formats": ("FlashMLA#184", "vllm#49435", "sglang#34765", "vllm#45720"),
    "padded rows and unused slots": ("vllm#37442", "vllm#57156", "pytorch#101967"),
    "graphs and stale plans": ("sglang#26019", "TensorRT-LLM#18443"),
    "workspaces and splits": ("vllm#47188", "tpu-inference#3426", "flashinfer#799"),
    "races": ("DeepGEMM#392", "flashinfer#5252", "fla#889"),
    "multi-token queries": ("flashinfer#4382", "aiter#3910", "aiter#3046", "flash-attention#1217"),
    "context and pipeline parallelism": ("vllm#54541", "ATOM#2118", "sglang#28532", "TensorRT-LLM#16197"),
    "head counts and strides": ("local-inference-lab/vllm#5", "local-inference-lab/vllm#17", "DeepGEMM#433"),
    "accumulators and scales": ("mlx#3119", "triton#1671", "vllm#46856", "flash-attention#2716"),
    "writes out of bounds": ("flashinfer#3978", "flashinfer#3957"),
    "tests that cannot fail": ("KernelBench#82", "KernelBench#165", "mlir-air#1427", "flashinfer#5078"),
}


def test_names_are_unique_and_readable():
    assert [name for name, count in Counter(entry.name for entry in FAULTS).items() if count > 1] == []
    assert [entry.name for entry in FAULTS if not re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)+", entry.name)] == []


def test_a_description_is_one_line():
    assert [e.name for e in FAULTS if not 10 <= len(e.description) <= 120 or "\n" in e.description] == []
    assert [entry.name for entry in FAULTS if not entry.description.endswith(".")] == []


def test_the_catalogue_is_large_enough_and_covers_every_operator_and_place():
    assert len(FAULTS) >= 130
    assert {entry.operator for entry in FAULTS} == set(KERNELS)
    assert Counter(entry.planted_in for entry in FAULTS)["triton"] >= 40
    assert {entry.planted_in for entry in FAULTS} == {"simulated", "reference-pipeline", "triton"}
    assert {"element", "bias", "lse", "structure", "memory", "topk", "rerun"} <= {e.expected_check for e in FAULTS}


@pytest.mark.parametrize("theme", REPORTED)
def test_every_theme_of_public_reports_has_its_faults(theme):
    sources = {entry.source for entry in FAULTS}
    assert [report for report in REPORTED[theme] if report not in sources] == []


def test_a_source_names_a_public_report():
    assert [e.name for e in FAULTS if e.source and not re.search(r"#\d+$|^arXiv \d{4}\.\d{5}$", e.source)] == []


def test_what_a_fault_needs_can_be_asked_of_a_case():
    marks = {"sequence", "k=0", "k<q", "k>q", "k=topk", "k=topk+1", "requests=2", "requests=3", "heads=2", "heads=12"}
    fields = {f"dtype={dtype}" for dtype in DTYPES} | {f"layout={layout}" for layout in LAYOUTS}
    for entry in FAULTS:
        kinds = {f"kind={kind}" for kind in KINDS[entry.operator]}
        reach = {f"reach={name}" for name in REACH[entry.operator]}
        assert set(entry.options) <= marks | fields | kinds | reach | set(OPTIONS[entry.operator]), entry.name


def test_a_fault_is_found_by_name_and_a_misspelt_one_gets_the_nearest():
    assert fault("causal-off-by-one").operator == "dense_mha"
    with pytest.raises(BadInput, match=r"unknown fault 'causal-of-by-one'; nearest: .*causal-off-by-one"):
        fault("causal-of-by-one")


def test_a_fault_applied_to_another_operator_names_both():
    with pytest.raises(BadInput, match="'relu-missing' is planted in 'indexer_scores'; it does not fit 'dense_mha'"):
        fault("relu-missing").implementation("dense_mha")


def test_a_fault_does_not_support_a_dtype_it_needs_another_for():
    implementation = fault("keys-read-as-fnuz").implementation()

    assert implementation.supports({"operator": "indexer_scores", "dtype": "e4m3"}) is None
    assert "needs dtype e4m3" in implementation.supports({"operator": "indexer_scores", "dtype": "bf16"})


def test_a_planted_kernel_remembers_and_a_newly_planted_one_does_not():
    stateful = fault("answer-cached-by-shape")
    implementation = stateful.implementation()

    assert implementation.load() is implementation.load()
    assert stateful.plant() is not stateful.plant()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operator": "flash"}, "expected an operator of .*dense_mha.*, got 'flash'"),
        ({"expected_check": "luck"}, "expected a check of .*, got 'luck'"),
        ({"escapes": ("hope",)}, r"expected verdicts of .*, got \['hope'\]"),
        ({"scale": None}, "expected either sites or a plant, got neither"),
        ({"plant": lambda: None}, "expected either sites or a plant, got both"),
    ],
    ids=["operator", "check", "verdict", "nothing-planted", "planted-twice"],
)
def test_a_record_that_cannot_be_is_refused(changes, message):
    fields = {"operator": "dense_mha", "expected_check": "element", "scale": lambda scale, q_len: scale} | changes
    operator, check = fields.pop("operator"), fields.pop("expected_check")
    sites = {name: value for name, value in fields.items() if value is not None}
    with pytest.raises(BadInput, match=message):
        sited("test")("made-up", operator, "A made-up fault.", "", check, **sites)
