"""Stages fed by each other: errors split into what was inherited and what a stage added, Hadamard, draft and ranks."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnoracle.oracle.bringup.chain import chain, chain_stages
from attnoracle.oracle.bringup.session import Session
from attnoracle.oracle.bringup.suite import Suite
from attnoracle.reference import stages as right

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "bringup"
RIGHT, MISREAD = "self.rotate_pairs(pe, positions), nope", "self.rotate_halves(pe, positions), nope"


@pytest.fixture
def links(suite):
    """The chain of a model of some text, in one shape."""

    def links(text, shape="chunk", without=()):
        model, adapters = ModuleType("model"), ModuleType("adapters")
        exec(compile(text, "model.py", "exec"), model.__dict__)
        adapters.model = model
        source = (EXAMPLE / "adapters.py").read_text().replace("import model\n", "")
        exec(compile(source, "adapters.py", "exec"), adapters.__dict__)
        mine = adapters.build(dict(suite.config), suite.state())
        own = {s.name: partial(getattr(adapters, s.name), mine) for s in chain_stages(suite) if s.name not in without}
        case = next(case for case in suite.cases if case.stage == "output" and case.name == shape)
        return {link.stage: link for link in chain(suite, case, own, "float32")}

    return links


@pytest.mark.parametrize("shape", ["prefill", "chunk", "decode"])
def test_right_code_adds_rounding_alone(links, example_model, shape):
    found = links(example_model, shape)
    assert len(found) == 12 and not any(link.found for link in found.values())
    assert found["q_latent"].inherited < 1e-12 and 0 < found["q_latent"].local < 1e-5
    assert 0 < found["query"].inherited < 1e-5


def test_a_fault_is_local_where_it_is_and_inherited_behind_it(links, example_model):
    found = links(example_model.replace(RIGHT, MISREAD))
    assert [name for name, link in found.items() if link.found] == ["index_query", "index_key"]
    assert found["index_query"].local > 0.1 > found["index_query"].inherited
    for name in ("index_scores", "select", "attention", "output"):
        assert found[name].inherited > 0.05 and found[name].local < 1e-5, name


def test_what_the_next_stage_refuses_shows_in_a_chain_alone(links, found_by, example_model):
    """Rotated in the dtype of the angles: right by itself, and no product with float32 rows is possible."""
    text = example_model.replace("return angle.cos().to(x.dtype).view(shape), angle.sin().to(x.dtype).view(shape)",
                                 "return angle.cos().view(shape), angle.sin().view(shape)")  # fmt: skip
    assert text != example_model
    assert not any(each.case.stage in ("rotate_query", "rotate_key") for each in found_by(text))
    found = links(text)
    (raised,) = (link for link in found.values() if link.found)
    assert "given what the stages before gave, it raised RuntimeError" in str(raised)


def test_a_stage_that_is_left_out_is_the_reference_s(links, example_model):
    found = links(example_model, without=("query",))
    assert not found["query"].own and "(the reference)" in str(found["query"])
    assert not any(link.found for link in found.values())


def test_the_generated_session_runs_chains(folder, example_model):
    for name, text in (("model.py", example_model), ("adapters.py", (EXAMPLE / "adapters.py").read_text())):
        (folder / name).write_text(text)
    session = Session(folder)
    assert [case.name for case in session.chains] == ["prefill", "chunk", "decode"]
    session.check_chain(session.chains[2])
    session.adapters.output = lambda mine, *, attended: mine.output(attended) * 1.01
    with pytest.raises(AssertionError, match=r"output +inherited .*, local 0\.01"):
        session.check_chain(session.chains[2])


def test_hadamard_on_both_sides_is_a_choice(suite):
    rotated = Suite(suite.config, replace(suite.model, hadamard=True), (), suite.cases)
    case = next(case for case in suite.cases if case.stage == "index_query")
    plain, both = suite.exact(case), rotated.exact(case)
    assert not torch.allclose(plain["index_q"], both["index_q"])
    torch.testing.assert_close(plain["scores"], both["scores"], rtol=1e-10, atol=1e-10)


def test_ranks_merge_to_the_attention(suite):
    known = suite.exact(next(case for case in suite.cases if case.name == "prefill"))
    torch.testing.assert_close(known["merged"], known["attended"], rtol=1e-12, atol=1e-12)
    assert (known["lses"] == -torch.inf).any() and not known["outs"][known["lses"] == -torch.inf].any()


def test_a_draft_input_has_the_embedding_first(suite):
    m, w = suite.model, suite.weights
    x = suite.exact(next(case for case in suite.cases if case.stage == "draft_input"))
    halves = w.draft_proj.chunk(2, -1)
    wanted = right.rms_norm(x["embedded"], w.draft_embed_norm, m.eps) @ halves[0].T
    wanted += right.rms_norm(x["previous"], w.draft_hidden_norm, m.eps) @ halves[1].T
    torch.testing.assert_close(x["drafted"], wanted, rtol=1e-12, atol=1e-12)


def test_an_engine_may_zero_the_first_embedding(suite):
    """Position 0 is free; anywhere else zeros are found."""
    case = next(case for case in suite.cases if case.stage == "draft_input")

    def zeroed(count, *, previous, embedded, positions):
        kept = torch.where((positions < count)[:, None], 0.0, embedded)
        return right.draft_input(suite.model, suite.weights, previous=previous.double(), embedded=kept.double(),
                                 positions=positions).float()  # fmt: skip

    assert suite.judge(case, partial(zeroed, 1)) is None
    assert suite.judge(case, partial(zeroed, 2)) is not None
