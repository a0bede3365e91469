"""Contracts by probing: what is found, what is left unknown, and that a kernel is held to it."""

import json

import pytest

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.fleet.confinement import Confinement
from attnoracle.oracle.guests import known, probed, probing
from attnoracle.oracle.guests.concerns import concerns
from attnoracle.oracle.guests.contract_file import read
from attnoracle.oracle.guests.external import default_contract, external
from attnoracle.oracle.operators import OPERATORS

ODD = '''
import itertools
import torch
from users_kernels import mine, base2

calls = itertools.count()


def strange(q, kv, indices, *, scale, value_dim):
    """Base 2, NaN where there is no key, another answer each time, duplicates once, -1 reads the last row."""
    last = indices.clone()
    last[:, 1:][(indices[:, 1:, None] == indices[:, None, :-1]).tril().any(-1)] = -1
    out, lse = mine(q, kv, last, scale=scale, value_dim=value_dim)
    out[(indices < 0).all(1)] = float("nan")
    return out * (1 + 1e-2 * (next(calls) % 2)), lse / 0.6931471805599453


def falls(q, kv, indices, *, scale, value_dim):
    if (indices >= len(kv)).any():
        import ctypes
        ctypes.string_at(0)
    return mine(q, kv, indices, scale=scale, value_dim=value_dim)
'''


BASE_2 = """
import torch
from attnoracle.reference import merge_lse
from users_kernels import mine

LN2 = 0.6931471805599453


def attend(q, kv, indices, *, scale, value_dim):
    out, lse = mine(q, kv, indices, scale=scale, value_dim=value_dim)
    return out, torch.where(lse == -torch.inf, -50000.0, lse / LN2)


def merge(out_a, lse_a, out_b, lse_b):
    out, lse = merge_lse(out_a.double(), lse_a.double() * LN2, out_b.double(), lse_b.double() * LN2)
    return out.to(out_a.dtype), (lse / LN2).float()
"""


@pytest.fixture
def here(monkeypatch):
    """Probes in this process: the pool has its own tests."""

    def run(pairs, *, device, judge, on_result, **options):
        assert isinstance(options["confinement"], Confinement)
        return [judge(case, name, device) for case, name in pairs]

    monkeypatch.setattr(probing, "run", run)


def test_what_a_kernel_does_is_proposed_and_what_nobody_asked_is_unknown(here, home):
    found = probing.propose(known.admit(external("users_kernels:mine", "sparse_mqa")), device="cpu")
    contract = found.contract
    assert (contract.probabilities, contract.lse_base, contract.empty_out, contract.empty_lse) == (
        "fp32",
        "e",
        "zero",
        "-inf",
    )
    assert (contract.invalid_index, contract.duplicates, contract.deterministic) == ("ignored", "counted", True)
    assert found.dtypes == ("bf16", "fp16", "fp32") and len(found.settled) == 8
    assert found.notes["exp_error"].startswith("unknown") and found.notes["batch_invariant"].startswith(
        "unknown: no diff"
    )
    assert not {"topk_order", "mask_rest", "causal_alignment", "empty_side"} & set(found.notes), "of other operators"
    (home / "found.toml").write_text(found.toml())
    again = read("found.toml")
    assert (again.contract, again.limits.dtypes, again.operator) == (contract, found.dtypes, "sparse_mqa")


def test_a_strange_kernel_is_described_as_it_is(here, home):
    (home / "odd_kernels.py").write_text(ODD)
    found = probing.propose(known.admit(external("odd_kernels:strange", "sparse_mqa")), device="cpu")
    contract = found.contract
    assert (contract.lse_base, contract.empty_out, contract.duplicates) == ("2", "nan", "collapsed")
    assert contract.deterministic is False
    assert found.notes["probabilities"].startswith("unknown: neither"), "an error of 1 % is excused by no format"


def test_conventions_of_flashinfer_are_recognised(here, home):
    """A finite LSE far below any score stands for an empty row; a merge may take and give base 2."""
    (home / "base_2.py").write_text(BASE_2)
    found = probing.propose(known.admit(external("base_2:attend", "sparse_mqa")), device="cpu").contract
    assert (found.lse_base, found.empty_out, found.empty_lse) == ("2", "zero", "sentinel")
    found = probing.propose(known.admit(external("base_2:merge", "merge_lse")), device="cpu").contract
    assert (found.lse_base, found.deterministic) == ("2", True)


def test_what_ran_on_no_dtype_is_said_once(monkeypatch):
    """What concerns other operators is no field of it."""
    default = default_contract("topk_select")
    raising = Implementation("topk_select/raising", default, lambda facts: None, lambda: _raising)
    monkeypatch.setattr(known, "find", lambda name: raising)
    found = probing.proposed(raising.name, default, device="cpu", trusted=True)
    assert found.toml().count("it ran on no dtype") == 1 and "topk_short" in found.notes
    assert not {"scores", "probabilities", "empty_out"} & set(found.notes)


def _raising(scores, ks, ke, *, k):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("operator", [operator.name for operator in OPERATORS])
def test_the_fields_that_concern_an_operator_hold_what_its_implementations_declare(operator):
    """No shipped implementation departs from the default in a field that does not concern its operator."""
    default = default_contract(operator).as_dict()
    for one in IMPLEMENTATIONS:
        if one.operator == operator:
            departs = {name for name, value in one.contract.as_dict().items() if value != default[name]}
            assert {name for name in departs if not concerns(name, operator)} == set(), one.name


def test_a_probe_that_kills_its_process_leaves_the_others(home):
    (home / "odd_kernels.py").write_text(ODD)
    found = probing.propose(known.admit(external("odd_kernels:falls", "sparse_mqa")), device="cpu")
    assert found.contract.lse_base == "e"
    assert "SIGSEGV" in found.notes["invalid_index"] and found.notes["invalid_index"].startswith("unknown")
    assert any("SIGSEGV" in problem for problem in found.problems)


@pytest.mark.parametrize("name", ["dense_mha/eager", "sparse_mqa/gather", "merge_lse/torch"])
def test_probing_says_of_a_shipped_implementation_what_the_file_says(here, home, name):
    (committed,) = [one for one in probed.recorded("cpu")["implementations"] if one["name"] == name]
    assert probed.measure(name) == committed


def test_the_file_covers_every_implementation_that_runs_here_and_none_is_contradicted():
    records = probed.records()
    assert {one["name"] for one in records["cpu"]["implementations"]} >= set(probed.here("cpu"))
    found = [one for record in records.values() for one in record["implementations"]]
    assert [one["contradicts"] for one in found] == [[]] * len(found)
    assert probed.block(probed.records()) in probed.PAGE.read_text()


@pytest.mark.parametrize(
    ("declares", "sees", "denied"),
    [
        ({"lse_base": "2"}, {"lse_base": "e"}, ["lse_base"]),
        ({"probabilities": "fp32"}, {"probabilities": "bf16"}, ["probabilities"]),
        ({"probabilities": "bf16"}, {"probabilities": "fp32"}, []),
        ({"probabilities": None}, {"probabilities": "bf16"}, []),
        ({"deterministic": False}, {"deterministic": True}, []),
        ({"deterministic": True}, {"deterministic": False}, ["deterministic"]),
        ({"invalid_index": "negative-ignored"}, {"invalid_index": "ignored"}, []),
        ({"invalid_index": "ignored"}, {"invalid_index": "negative-ignored"}, ["invalid_index"]),
        ({"empty_out": "undefined"}, {"empty_out": "nan"}, []),
    ],
    ids=str,
)
def test_what_contradicts_a_promise(declares, sees, denied):
    notes = dict.fromkeys(sees, "probed")
    found = probing.Proposal("sparse_mqa/x", Contract(**sees), notes, ("bf16",))
    assert list(probing.contradictions(Contract(**declares), found)) == denied


def test_a_kernel_is_held_to_the_proposal(attnoracle, here):
    case = "sparse_mqa:tiny:h4:q3,1:k20,9:top8:bf16:randn:contiguous:-:s0"
    words = ["--operator", "sparse_mqa", "--case", case, "--device", "cpu", "-j", "1"]
    code, _, err = attnoracle("check", "--impl", "users_kernels:mine", *words)
    assert code == 0 and 'probabilities = "fp32"' in err and "unknown, and no probe asks" in err
    code, out, err = attnoracle("check", "--impl", "users_kernels:scaled", *words)
    assert code == 1 and "# probabilities: unknown: neither" in err and "an LSE is off" in " ".join(out.split())


def test_the_command_writes_the_contract_and_says_what_is_settled(attnoracle, here, home):
    code, out, err = attnoracle(
        "contract",
        "users_kernels:base2",
        "--operator",
        "sparse_mqa",
        "--device",
        "cpu",
        "--out",
        "b.toml",
        "--json",
        "-",
    )
    assert code == 0 and "fields settled" in err
    assert read("b.toml").contract.lse_base == "2"
    fields = {one["name"]: one for one in json.loads(out)["fields"]}
    assert fields["lse_base"]["settled"] and not fields["scores"]["settled"]
    code, _, err = attnoracle("contract", "users_kernels:odd", "--operator", "sparse_mqa", "--device", "cpu")
    assert code == 2 and "cannot be called as sparse_mqa" in err
