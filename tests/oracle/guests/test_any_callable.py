"""Kernels of users: found, fitted, judged; and what is said where that is not possible."""

import importlib.metadata
import json
import sys

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check as judge
from attnoracle.oracle.config import named
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.guests import contract_file, known
from attnoracle.oracle.guests.external import external, refused_by
from attnoracle.oracle.guests.target import resolve
from attnoracle.reference import dense_mha, sparse_mqa

CASE = "sparse_mqa:tiny:h4:q3,1:k20,9:top8:bf16:randn:contiguous:-:s0"
SINK = "sparse_mqa:tiny:h4:q3:k20:top8:bf16:randn:contiguous:sink:s0"
DECLARED = '[contract]\nprobabilities = "fp32"\n'


@pytest.fixture
def check(attnoracle, home):
    (home / "contract.toml").write_text(DECLARED)

    def check(target, *arguments, contract="contract.toml", case=CASE):
        words = ["check", "--impl", target, "--operator", "sparse_mqa", "--device", "cpu", "-j", "1", "--case", case]
        return attnoracle(*words, *(["--contract", contract] if contract else []), *arguments)

    return check


def test_a_right_kernel_passes_and_clashes_with_nothing(check):
    code, out, _ = check("users_kernels:mine")
    assert code == 0 and "sparse_mqa mine" in out and "1 pass" in out


@pytest.mark.parametrize("target", ["users_kernels.py:mine", "users_kernels:called"])
def test_a_file_and_an_object_that_is_callable(check, target):
    assert check(target)[0] == 0


def test_a_wrong_kernel_fails_with_a_command_that_runs_it_again(check, attnoracle):
    code, out, _ = check("users_kernels:scaled")
    assert code == 1
    line = next(line for line in out.splitlines() if "repro " in line)
    words = line.partition("attnoracle ")[2].replace("'", "").split()
    assert words[2:6] == ["--impl", "users_kernels:scaled", "--operator", "sparse_mqa"]
    code, again, _ = attnoracle(*words)
    assert code == 1 and "FAIL  sparse_mqa/scaled" in again


def test_a_kernel_that_returns_no_lse_and_one_of_another_base(check, home):
    (home / "none.toml").write_text(f'{DECLARED}lse_base = "none"\n')
    assert check("users_kernels:bare", contract="none.toml")[0] == 0
    (home / "two.toml").write_text(f'{DECLARED}lse_base = "2"\n')
    assert check("users_kernels:base2", contract="two.toml")[0] == 0
    assert check("users_kernels:base2")[0] == 1


def test_an_option_that_the_kernel_has_no_parameter_for_is_unsupported(check):
    code, out, _ = check("users_kernels:bare", case=SINK)
    assert code == 2 and "it has no parameter sink" in " ".join(out.split())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("users_kernels", "expected package.module:function"),
        ("nowhere.kernels:mine", "expected one that imports, got ModuleNotFoundError"),
        ("reference:mine", "RuntimeError: this is the reference of the user"),
        ("users_kernels:mien", "nearest: mine"),
        ("users_kernels:CONSTANT", "expected a callable, got int"),
        ("users_kernels:odd", "its signature is (queries, cache)"),
        ("absent.py:mine", "no file absent.py"),
    ],
)
def test_what_cannot_be_judged_says_what_came_and_what_was_expected(check, target, words):
    code, _, err = check(target)
    assert code == 2 and words in err


def test_options_that_do_not_go_together(attnoracle, check):
    assert "--contract x: goes with --impl" in attnoracle("check", "--contract", "x")[2]
    assert "expected one --operator" in attnoracle("check", "--impl", "users_kernels:mine")[2]
    code, _, err = attnoracle("check", "--impl", "users_kernels:mine", "--operator", "sparse_mqq")
    assert code == 2 and "nearest: sparse_mqa" in err
    code, _, err = check("users_kernels:mine", "--adapter", "flash-attn-varlen")
    assert code == 2 and "is not for sparse_mqa; for that: flash-mla" in err
    assert "the kernel has no kv" not in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[contract\n", "expected TOML"),
        ("[contrakt]\n", "nearest: contract"),
        ('lse_base = "2"\n', "expected fields of a contract under [contract], got it above"),
        ('[contract]\nlse_bse = "2"\n', "nearest: lse_base"),
        ('[contract]\nlse_base = "10"\n', "expected one of e, 2, none"),
        ('[contract]\ndeterministic = "yes"\n', "expected bool"),
        ("[contract]\nexp_error = 2.0\n", "expected a relative error"),
        ('operator = "dense_mha"\n', "is for dense_mha"),
        ('[supports]\ndtypes = ["bf17"]\n', "nearest: bf16"),
        ("[supports]\nheads = 64\n", "expected a list of head counts"),
    ],
)
def test_a_contract_that_is_none(check, home, text, words):
    (home / "bad.toml").write_text(text)
    code, _, err = check("users_kernels:mine", contract="bad.toml")
    assert code == 2 and words in err


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "an object of fields, got list"), ("{", "the contract.json of a bundle")]
)
def test_a_contract_of_a_bundle_that_is_none(home, text, words):
    (home / "contract.json").write_text(text)
    with pytest.raises(BadInput, match=words):
        contract_file.read("contract.json")


def test_a_contract_survives_its_file(home):
    contract = Contract(probabilities=None, lse_base="2", empty_out="nan", exp_error=2.0**-13, batch_invariant=True)
    (home / "c.toml").write_text(contract_file.spelled(contract, notes={"lse_base": "measured"}))
    assert contract_file.read("c.toml").contract == contract
    (home / "contract.json").write_text(json.dumps(contract.as_dict()))
    assert contract_file.read("contract.json").contract == contract


def test_limits_of_a_contract_make_cases_unsupported(check, home):
    for line in ('dtypes = ["fp16"]', "heads = [64, 128]", "topk_multiple = 64", 'layouts = ["strided"]'):
        (home / "limits.toml").write_text(f"{DECLARED}[supports]\n{line}\n")
        code, out, _ = check("users_kernels:mine", contract="limits.toml")
        assert code == 2 and "its contract takes" in out, line


def test_a_contract_that_leaves_an_answer_open_leaves_the_case_out():
    facts = {"options": ("duplicates", "invalid"), "causal": True, "q_lens": (2,), "k_lens": (3,)}
    assert refused_by(Contract(), facts) is None
    for changed in ({"duplicates": "collapsed"}, {"invalid_index": "undefined"}, {"causal_alignment": "top-left"}):
        assert next(iter(changed)) in refused_by(Contract(**changed), facts) or "causal" in refused_by(
            Contract(**changed), facts
        )


def _as_flash_mla(q, kv, indices, sm_scale, d_v=64, attn_sink=None, topk_length=None):
    out, lse = sparse_mqa(
        q, kv[:, 0], indices[:, 0], scale=sm_scale, value_dim=d_v, lengths=topk_length, sink=attn_sink
    )
    return out.to(q.dtype), lse, lse.float()


def _as_flash_mla_paged(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, indices):
    kv = k_cache.flatten(0, 2)
    kv = torch.where(kv.isnan(), 0.0, kv)
    out, lse = sparse_mqa(q[:, 0], kv, indices[:, 0], scale=softmax_scale, value_dim=head_dim_v)
    return out[:, None].to(q.dtype), lse[..., None].float()


def _as_absorbed(q_nope, q_pe, ckv, kpe, indices, sm_scale):
    q, kv = torch.cat((q_nope, q_pe), -1), torch.cat((ckv, kpe), -1)
    out, lse = sparse_mqa(q, kv, indices, scale=sm_scale, value_dim=ckv.shape[-1])
    return out.to(q.dtype), lse.float()


def _as_unabsorbed(q_nope, q_pe, ckv, kpe, w_uk, w_uv, indices, sm_scale):
    latent = torch.einsum("shp,hpc->shc", q_nope.float(), w_uk.float())
    q, kv = torch.cat((latent, q_pe.float()), -1), torch.cat((ckv, kpe), -1)
    out, lse = sparse_mqa(q, kv, indices, scale=sm_scale, value_dim=ckv.shape[-1])
    return torch.einsum("shc,hcv->shv", out, w_uv.float()).to(q_nope.dtype), lse.float()


def _as_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, return_softmax_lse=False
):
    assert max_seqlen_k == int(cu_seqlens_k.diff().max())
    out, lse = dense_mha(q, k, v, cu_seqlens_q, cu_seqlens_k, scale=softmax_scale, causal=causal)
    return (out.to(q.dtype), lse.T.float()) if return_softmax_lse else out.to(q.dtype)


def _as_vllm(q, k, v, cu_seqlens_q, seqused_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, block_table):
    sides = [
        torch.cat(
            [
                side[row[: -(-n // 64)].long()].flatten(0, 1)[:n]
                for row, n in zip(block_table, seqused_k.tolist(), strict=False)
            ]
        )
        for side in (k, v)
    ]
    cu_k = torch.nn.functional.pad(seqused_k.cumsum(0), (1, 0)).int()
    out, lse = dense_mha(q, *sides, cu_seqlens_q, cu_k, scale=softmax_scale, causal=causal)
    return out.to(q.dtype), lse.T.float()


SIGNATURES = {
    "flash-mla": _as_flash_mla,
    "flash-mla-paged": _as_flash_mla_paged,
    "absorbed": _as_absorbed,
    "unabsorbed": _as_unabsorbed,
    "flash-attn-varlen": _as_varlen,
    "vllm-paged": _as_vllm,
}
DENSE = "dense_mha:tiny:h2:q3,1,70:k20,9,150:bf16:randn:contiguous:-:s0"


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_adapter_is_recognised_and_only_rearranges(name, monkeypatch):
    """Exactly the reference behind each signature: right, and wrong as soon as the scale is."""
    kernel = SIGNATURES[name]
    operator = "dense_mha" if name in ("flash-attn-varlen", "vllm-paged") else "sparse_mqa"
    case = Case.parse(DENSE if operator == "dense_mha" else CASE)
    from attnoracle.oracle.guests.fit import fit

    fitted = fit(kernel, operator)
    assert fitted.adapter == name and fit(kernel, operator, name).adapter == name
    contract = Contract(probabilities="fp32")

    def off(**inputs):
        return fitted.function(**{**inputs, "scale": inputs["scale"] * 1.02})

    for function, status in ((fitted.function, "PASS"), (off, "FAIL")):
        mine = Implementation(f"{operator}/mine", contract, lambda facts: None, lambda function=function: function)
        verdict = judge(case, mine)
        assert verdict.status == status, verdict


def test_an_adapter_of_ones_own(check, home):
    (home / "users_adapters.py").write_text(
        "def to_mine(kernel):\n"
        "    def call(q, kv, indices, *, scale, value_dim, lengths=None, sink=None):\n"
        "        from users_kernels import mine\n"
        "        return mine(q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink)\n"
        "    return call\n"
    )
    assert check("users_kernels:odd", "--adapter", "users_adapters:to_mine")[0] == 0
    sys.modules.pop("users_adapters")


def test_workers_know_the_guests_too(attnoracle, home):
    (home / "contract.toml").write_text(DECLARED)
    (home / "made-up.json").write_text(
        (named._MODELS / "tiny.json").read_text().replace('"kv_lora_rank": 64', '"kv_lora_rank": 48')
    )
    case = CASE.replace(":tiny:", ":made-up:")
    code, _, err = attnoracle(
        "check", "--impl", "users_kernels:mine", "--operator", "sparse_mqa", "--contract", "contract.toml",
        "--geometry", "made-up.json", "--case", case, "--timeout", "120", "--device", "cpu", "-j", "1",
        "--json", "o.json",
    )  # fmt: skip
    assert code == 0, err
    (verdict,) = json.loads((home / "o.json").read_text())["verdicts"]
    assert f"--geometry {home / 'made-up.json'} " in verdict["repro"]
    assert f"--contract {home / 'contract.toml'} " in verdict["repro"]


def test_a_geometry_from_a_file_gets_the_batches_of_the_suite(attnoracle, home):
    (home / "made-up.json").write_text(
        (named._MODELS / "tiny.json").read_text().replace('"kv_lora_rank": 64', '"kv_lora_rank": 48')
    )
    code, out, _ = attnoracle("check", "--geometry", "made-up.json", "--operator", "sparse_mqa", "--list")
    assert code == 0 and len(out.splitlines()) > 15 and all(":made-up:" in line for line in out.splitlines())
    (home / "glm-5.json").write_text((home / "made-up.json").read_text())
    code, _, err = attnoracle("check", "--geometry", "./glm-5.json", "--list")
    assert code == 2 and "rename the file" in err
    code, _, err = attnoracle("check", "--geometry", "none.json", "--list")
    assert code == 2 and "no config at none.json" in err


def test_two_kernels_of_one_name(home):
    (home / "others.py").write_text("from users_kernels import mine\n")
    known.admit(external("users_kernels:mine", "sparse_mqa"))
    with pytest.raises(BadInput, match="two implementations are called sparse_mqa/mine"):
        known.admit(external("others:mine", "sparse_mqa"))
    sys.modules.pop("others")


def test_a_name_that_a_shipped_implementation_has_gets_its_module(home):
    (home / "others.py").write_text("from users_kernels import mine as triton\n")
    assert external("others:triton", "sparse_mqa").name == "sparse_mqa/others.triton"
    sys.modules.pop("others")


def test_entry_points_of_other_packages(monkeypatch, home):
    (home / "plugged.py").write_text(
        "from attnoracle.optimized.contract import Contract\n"
        "from attnoracle.optimized.implementation import Implementation\n"
        "from users_kernels import mine\n"
        "RIGHT = Implementation('sparse_mqa/plugged', Contract(probabilities='fp32'), lambda f: None, lambda: mine)\n"
    )
    monkeypatch.syspath_prepend(home)
    points = [
        importlib.metadata.EntryPoint("sparse_mqa/plugged", "plugged:RIGHT", known.GROUP),
        importlib.metadata.EntryPoint("sparse_mqa/broken", "plugged:ABSENT", known.GROUP),
        importlib.metadata.EntryPoint("sparse_mqa/other", "plugged:RIGHT", known.GROUP),
    ]
    monkeypatch.setattr(known, "entry_points", lambda group: points)
    assert judge(Case.parse(CASE), known.find("sparse_mqa/plugged")).status == "PASS"
    assert "sparse_mqa/plugged" in known.names()
    with pytest.raises(BadInput, match="expected plugged:ABSENT to import"):
        known.find("sparse_mqa/broken")
    with pytest.raises(BadInput, match="expected an Implementation of that name"):
        known.find("sparse_mqa/other")
    sys.modules.pop("plugged")


def test_a_triton_kernel_of_a_user_is_interpreted_and_mended(home):
    """In the interpreter as shipped, adding bf16 numbers adds their bits."""
    (home / "users_triton.py").write_text(
        "import torch, triton\nimport triton.language as tl\n\n\n"
        "@triton.jit\ndef _add(a_ptr, b_ptr, out_ptr, N: tl.constexpr):\n"
        "    i = tl.arange(0, N)\n"
        "    tl.store(out_ptr + i, tl.load(a_ptr + i) + tl.load(b_ptr + i))\n\n\n"
        "def add(a, b):\n    out = torch.empty_like(a)\n    _add[(1,)](a, b, out, a.numel())\n    return out\n"
    )
    add = resolve("users_triton:add")
    a, b = torch.randn(16).bfloat16(), torch.randn(16).bfloat16()
    assert torch.equal(add(a, b), a + b)
    sys.modules.pop("users_triton")
