"""Diagnosis as a whole: the map, marks, probes, what is said when nothing fits, and the command."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.bundle import write
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.again import fails_later
from attnoracle.oracle.check import check
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.diagnose import diagnose, diagnosis
from attnoracle.oracle.diagnose.dictionary import tiled
from attnoracle.oracle.diagnose.errormap import error_maps, strip
from attnoracle.oracle.diagnose.observation import observe
from attnoracle.oracle.diagnose.probes import locate
from attnoracle.oracle.diagnose.rules import described
from attnoracle.oracle.faults import fault
from attnoracle.oracle.faults.simulated import SIMULATED, simulated

DENSE = Case.parse("dense_mha:tiny:h2:q6,9:k20,30:bf16:randn:contiguous:-:s0")
MERGE = "merge_lse:tiny:h2:q6:k6:bf16:randn:contiguous:-:s0"


def _planted(operator, **sites):
    kernel = simulated(operator, **sites)
    return Implementation(f"{operator}/planted", SIMULATED, lambda facts: None, lambda: kernel)


def test_a_cause_is_one_of_several_where_the_case_cannot_tell_them_apart(capsys, monkeypatch):
    """With two heads the last one and the second half are the same; with four they are not."""
    monkeypatch.setenv("COLUMNS", "80")
    case, planted = "indexer_scores:tiny:h{}:q2:k6:bf16:randn:contiguous:-:s0", "fault:last-head-dropped"
    assert main(["diagnose", case.format(2), "-i", planted, "--json", "-"]) == 1
    out, err = capsys.readouterr()
    said = " ".join(err.split())
    first, *others = [each["words"] for each in json.loads(out)["diagnoses"][0]["tied"]]
    assert (
        f"cause One of {len(others) + 1} that this case cannot tell apart: {first}" in said
        and "a further failing case" in said
    )
    assert others and all(f"the same here: {each}" in said for each in others) and max(map(len, err.splitlines())) <= 80
    assert main(["diagnose", case.format(4), "-i", planted]) == 1
    assert "cause The loop over heads stops one early. (" in " ".join(capsys.readouterr().out.split())


def test_the_map_names_rows_heads_and_columns():
    case = Case.parse("dense_mha:tiny:h4:q70:k70:bf16:randn:contiguous:-:s0")

    def damaged(out, dtype):
        out = out.clone()
        out[:, 2:, 5] += 3 * (torch.arange(len(out)) % 32 == 31)[:, None]
        return out.to(dtype)

    (found,) = error_maps(observe(case, _planted("dense_mha", output=damaged)))
    rules = {axis.name: axis.rule for axis in found.axes}
    assert rules == {"queries": "queries = 31 mod 32", "heads": "the last 2 heads", "columns": "column 5"}
    assert found.output == "out" and found.wrong == 2 * 2 and len(strip(found.axes[0].shares)) <= 48


@pytest.mark.parametrize(
    ("wanted", "rule"),
    [
        (range(5), "the first 5 keys"),
        (range(90, 100), "the last 10 keys"),
        (range(64, 100), "the last 36 keys"),
        (range(7, 100, 16), "keys = 7 mod 16"),
        (range(20, 40), "keys 20 to 39"),
        ([50], "key 50"),
    ],
)
def test_rules_in_words(wanted, rule):
    places = torch.arange(100)
    hit = torch.zeros(100, dtype=torch.bool)
    hit[list(wanted)] = True
    assert next(described(places, hit, torch.ones_like(hit), 100, "key")) == rule


def test_tails_of_requests_of_several_lengths_are_partial_tiles():
    places = torch.cat((torch.arange(100), torch.arange(70)))
    length = torch.cat((torch.full((100,), 100), torch.full((70,), 70)))
    rule = next(described(places, places >= 64, torch.ones(170, dtype=torch.bool), length, "key"))
    assert rule == "keys of the last partial tile of 64"


@pytest.mark.parametrize(
    ("sites", "stage"),
    [
        ({"seen": lambda seen, cols: seen & (cols != 3)}, "mask"),
        ({"scale": lambda s, n: s * 1.1}, "scores"),
        ({"product": lambda p, v: p @ v * 1.1}, "output"),
        ({"values": None, "inputs": lambda q, k, v: (q, k, v.roll(1, 0))}, "P.V"),
        ({"lse": lambda lse, out: lse + (lse.abs() > 3)}, None),
    ],
)
def test_probes_find_the_stage_inside_a_kernel(sites, stage):
    sites = {name: site for name, site in sites.items() if site is not None}
    found = locate(DENSE, _planted("dense_mha", **sites))
    if stage is None:
        assert found.stage in ("lse", "mask")  # a wrong LSE alone, wherever it is read
    else:
        assert found.stage == stage, found
    assert locate(DENSE, _planted("dense_mha")).stage is None


@pytest.mark.parametrize(
    ("name", "case", "words"),
    [
        ("write-before-the-start", MERGE, "writes outside"),
        ("output-broadcast", MERGE, "has shape"),
        ("head-sum-race", "indexer_scores:tiny:h4:q5:k20:bf16:randn:contiguous:-:s0", "runs are right"),
        ("output-accumulates", DENSE.id, "adds its answer"),
        ("sum-order-varies", "sparse_mqa:tiny:h4:q3:k60:top40:bf16:randn:contiguous:-:s0", "varying order"),
        ("ties-in-arrival-order", "topk_select:tiny:h1:q3:k300:top40:bf16:clustered:contiguous:-:s0", "runs"),
        ("scale-of-first-call", "sparse_mqa:tiny:h4:q3:k30:top20:bf16:randn:contiguous:-:s0",
        "scale of the first"), ("selection-cached-by-shape",
        "topk_select:tiny:h1:q4:k30:top8:bf16:randn:contiguous:-:s0", "answer of the"),
    ],
)  # fmt: skip
def test_what_a_verdict_gives_away(name, case, words):
    found = diagnose(Case.parse(case), fault(name).implementation)
    assert words in found.conclusion, found.conclusion


def _wrong_at_39_keys(kept):
    """A selection that is wrong where the second window has 39 keys; ``kept``: only after a call before."""
    calls = []

    def kernel(scores, ks, ke, *, k):
        (right,) = simulated("topk_select")(scores=scores, ks=ks, ke=ke, k=k)
        broken = int(ke[1] - ks[1]) == 39 and (calls or not kept)
        calls.append(1)
        return (right.flip(0) if broken else right,)

    return Implementation("topk_select/x", Contract(lse_base=None), lambda facts: None, lambda: kernel)


@pytest.mark.parametrize("kept", [False, True], ids=["alone", "after-another"])
def test_a_later_call_that_is_wrong_by_itself_is_diagnosed_in_place_of_the_sequence(monkeypatch, kept):
    @contextmanager
    def fresh(name, device, timeout):
        yield lambda case: check(case, _wrong_at_39_keys(kept))

    monkeypatch.setattr(diagnosis, "apart", fresh)
    case = Case.parse("topk_select:tiny:h1:q2,2:k40,50:top9:bf16:randn:contiguous:-:s0")
    found = diagnose(case, lambda: _wrong_at_39_keys(kept), name="topk_select/x")
    assert fails_later(found.verdict) and found.verdict.case == case
    assert found.conclusion.startswith("Nothing is kept between calls: topk_select:tiny:h1:q2x2:k39,51:") is not kept


def test_the_convention_that_the_judge_found_is_the_cause():
    kernel = Implementation("topk_select/x", Contract(lse_base=None), lambda facts: None, lambda: _unordered)
    found = diagnose(Case.parse("topk_select:tiny:h1:q2:k7:top9:bf16:randn:contiguous:-:s0"), lambda: kernel)
    assert found.conclusion.startswith("The answer is right with the keys of a window of at most k in any order")


def _unordered(scores, ks, ke, *, k):
    (right,) = simulated("topk_select")(scores=scores, ks=ks, ke=ke, k=k)
    return (torch.cat((right[:, 1:2], right[:, :1], right[:, 2:]), 1),)


def test_ideas_are_computed_in_the_declared_format_of_the_probabilities():
    """A kernel that keeps them in fp32 is no nearer to an idea that rounds them to bf16 than to a wrong one."""

    def kernel(q, kv, indices, *, scale, value_dim, **further):
        from attnoracle.reference import sparse_mqa

        out, lse = sparse_mqa(q, kv, indices[:, : indices.shape[1] // 16 * 16], scale=scale, value_dim=value_dim)
        return out.to(q.dtype), lse.float()

    mine = Implementation("sparse_mqa/x", Contract(probabilities="fp32"), lambda facts: None, lambda: kernel)
    case = Case.parse("sparse_mqa:tiny:h4:q3,2:k70,58:top40:bf16:randn:contiguous:-:s0")
    seen = observe(case, mine)
    idea = next(one for one in tiled("sparse_mqa") if one.words.startswith("Only whole tiles of slots are visited (ti"))
    assert seen.deviation().off > 100 and seen.gap(seen.predicted(idea.predict)).off == 0
    bf16 = replace(seen, contract=Contract())
    assert seen.gap(bf16.predicted(idea.predict)).off > 10


def test_a_right_kernel_and_one_that_raises():
    right = diagnose(DENSE, lambda: _planted("dense_mha"))
    assert not right.verdict.bad and "Nothing to diagnose" in right.conclusion

    def raising(**a):
        raise RuntimeError("out of shared memory")

    broken = Implementation("dense_mha/x", SIMULATED, lambda facts: None, lambda: raising)
    assert "out of shared memory" in diagnose(DENSE, lambda: broken).conclusion


def test_nothing_fits_is_said():
    kernel = simulated("merge_lse")

    def noisy(**a):
        out, lse = kernel(**a)
        noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
        return out + noise.to(out.dtype), lse

    found = diagnose(
        Case.parse(MERGE), lambda: Implementation("merge_lse/x", SIMULATED, lambda facts: None, lambda: noisy)
    )
    assert found.conclusion.startswith("Nothing")


def test_the_command_in_words_and_as_data(capsys):
    arguments = ["diagnose", MERGE, "-i", "fault:merge-lse-in-base-2", "--device", "cpu"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "cause  The merged LSE is returned in base 2." in out and max(map(len, out.splitlines())) <= 80
    assert main([*arguments, "--json", "-"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"]["name"] == "attnoracle.diagnose" and told["summary"]["explained"]
    assert told["diagnoses"][0]["hypotheses"][0]["stage"] == "merge"
    assert main(["diagnose", MERGE, "-i", "merge_lse/torch", "--device", "cpu"]) == 0
    assert main(["diagnose", MERGE, "--device", "cpu"]) == 2


def test_a_bundle_is_diagnosed_without_its_kernel(tmp_path, capsys):
    made = fault("merge-larger-side-wins").implementation()
    folder = write(tmp_path / "b", check(Case.parse(MERGE), made), made)
    assert main(["diagnose", str(folder), "--stored", "--device", "cpu"]) == 1
    assert "The side with the larger LSE is taken whole" in capsys.readouterr().out


def test_check_bundles_and_diagnoses_its_failures(tmp_path, capsys, monkeypatch):
    from attnoracle.oracle.guests import known

    wrong = fault("merge-by-mean").implementation()
    find, names = known.find, known.names
    monkeypatch.setattr(known, "find", lambda name: wrong if name == wrong.name else find(name))
    monkeypatch.setattr(known, "names", lambda: (*names(), wrong.name))
    arguments = ["check", "--case", MERGE, "-i", wrong.name, "--device", "cpu", "-j", "1", "--diagnose"]
    assert main([*arguments, "--bundle", str(tmp_path / "bundles")]) == 1
    out = capsys.readouterr().out
    assert "The two sides are averaged." in out
    (folder,) = (tmp_path / "bundles").iterdir()
    assert (folder / "repro.py").is_file() and "q1:" in (folder / "bundle.json").read_text()
