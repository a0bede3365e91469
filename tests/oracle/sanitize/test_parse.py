"""Reports of compute-sanitizer in the forms that it has printed in public, and verdicts made of them."""

from dataclasses import replace

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.sanitize.judge import judged
from attnoracle.oracle.sanitize.meetings import _listen, meeting
from attnoracle.oracle.sanitize.parse import TOOLS, Report, parse
from attnoracle.oracle.sanitize.target import DONE
from attnoracle.oracle.sanitize.tool import run

#: As in triton-viz#158, with a second thread of the same line.
MEMCHECK = """\
========= COMPUTE-SANITIZER
compiled in 3 s
========= Invalid __global__ read of size 16 bytes
=========     at matmul_kernel+0xec0 in matmul_triton2.py:43
=========     by thread (18,0,0) in block (0,0,0)
=========     Access to 0x74505bcccca0 is out of bounds
=========     and is 161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x2f26f0]
=========                in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========
========= Invalid __global__ read of size 16 bytes
=========     at matmul_kernel+0xec0 in matmul_triton2.py:43
=========     by thread (19,0,0) in block (0,0,0)
=========     Access to 0x74505bccccb0 is out of bounds
=========
attnoracle: the target is done
========= ERROR SUMMARY: 1,204 errors
"""
#: As in sglang#2599.
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 16 bytes
=========     at 0xda0 in /srv/fused_moe_triton/fused_moe.py:175:fused_moe_kernel
=========     by thread (96,0,0) in block (44,0,0)
=========     Address 0x763995f9f000 is out of bounds
========= Program hit unspecified launch failure (error 719) on CUDA API call to cuCtxSynchronize.
========= ERROR SUMMARY: 2 errors
"""
#: As in cudf#23900 and kokkos#6217.
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at calc(unsigned int, const block<32> &)+0xd790 in delta.cuh:324
=========     and Read access at calc(unsigned int, const block<32> &)+0xd5c0 in delta.cuh:312 [16 hazards]
=========
========= Warning: Race reported between Read access at 0x1f20 in /k/Range.hpp:249:Impl::operator ()() const
=========     and Write access at 0x14b0 in /k/ReduceScan.hpp:349:Impl::scalar_intra_block_reduction [4 hazards]
=========
attnoracle: the target is done
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at flash_attn_ext_f16_process_tile+0x3f0 in fattn-mma-f16.cuh:1538
=========     by thread (0,1,0) in block (3,0,0)
=========
========= ERROR SUMMARY: 4000 errors
"""
#: As in cccl#2104.
INITCHECK = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0xa0a50 in /usr/local/cuda-12.2/cub/thread/thread_load.cuh:272:ThreadLoad<LOAD_CG,const unsigned int *>
=========     by thread (30,0,0) in block (1,0,0)
=========     Address 0x7f65e5204710
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\nattnoracle: the target is done\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
CASE = Case.parse("merge_lse:tiny:h2:q4,3:k4,3:bf16:randn:contiguous:-:s0")


@pytest.mark.parametrize(
    ("text", "tool", "kind", "kernel", "place", "errors"),
    [
        (MEMCHECK, "memcheck", "Invalid __global__ read of size 16 bytes",
         "matmul_kernel", "matmul_triton2.py:43", 1204),
        (OLDER, "memcheck", "Invalid __global__ write of size 16 bytes", "fused_moe_kernel",
         "/srv/fused_moe_triton/fused_moe.py:175", 2),
        (RACECHECK, "racecheck", "Race reported between Write access",
         "calc(unsigned int, const block<32> &)", "delta.cuh:324", 1),
        (SYNCCHECK, "synccheck", "Barrier error detected. Divergent thread(s) in block",
         "flash_attn_ext_f16_process_tile", "fattn-mma-f16.cuh:1538", 4000),
        (INITCHECK, "initcheck", "Uninitialized __global__ memory read of size 4 bytes",
         "ThreadLoad<LOAD_CG,const unsigned int *>", "/usr/local/cuda-12.2/cub/thread/thread_load.cuh:272", 1),
    ],
    ids=["memcheck", "memcheck-2022", "racecheck", "synccheck", "initcheck"],
)  # fmt: skip
def test_a_record_says_what_and_where(text, tool, kind, kernel, place, errors):
    report = parse(text, tool)
    first = report.hazards[0]
    assert (first.kind, first.kernel, first.place, report.errors) == (kind, kernel, place, errors)


def test_details_of_records():
    first, second = parse(MEMCHECK, "memcheck").hazards
    assert first.thread == "thread (18,0,0) of block (0,0,0)"
    assert first.detail.startswith("is out of bounds, and is 161 bytes after the nearest allocation")
    assert second.thread == "thread (19,0,0) of block (0,0,0)"
    error, warning = parse(RACECHECK, "racecheck").hazards
    assert (error.severity, error.detail) == ("error", "and read at delta.cuh:312")
    assert (warning.severity, warning.detail) == ("warning", "and write at /k/ReduceScan.hpp:349")
    assert parse(RACECHECK, "racecheck").warnings == 1
    assert [one.kind[:11] for one in parse(OLDER, "memcheck").hazards] == ["Invalid __g", "Program hit"]


@pytest.mark.parametrize("text", [CLEAN, NO_RACE])
def test_a_clean_report_has_nothing(text):
    report = parse(text, "racecheck")
    assert (report.hazards, report.errors, report.finished) == ((), 0, True)


def test_a_report_without_its_summary_shows_nothing():
    report = parse(
        "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. compute-sanitizer timed-out.\n",
        "memcheck",
    )
    assert not report.finished and "No attachable process" in report.trouble


def verdict(**texts):
    return judged(
        CASE, "merge_lse/triton", lambda tool: parse(texts.get(tool, NO_RACE if tool == "racecheck" else CLEAN), tool)
    )


def test_verdicts_of_reports():
    assert verdict().status == "PASS" and verdict().measures["tools"] == len(TOOLS)
    bad = verdict(memcheck=MEMCHECK, racecheck=RACECHECK)
    assert bad.status == "FAIL" and [one.check for one in bad.findings] == ["memcheck", "racecheck"]
    assert "matmul_kernel in matmul_triton2.py:43" in bad.reason and bad.findings[0].where == "matmul_triton2.py:43"
    assert bad.measures["warnings"] == 1.0
    broken = verdict(synccheck="Traceback\n")
    assert (broken.status, broken.reason) == ("ERROR", "synccheck: no summary line")
    uncounted = verdict(initcheck="========= ERROR SUMMARY: 3 errors\n")
    assert uncounted.status == "FAIL" and "3 errors by its summary, none shown" in uncounted.reason


#: As an H200 printed it of a kernel whose groups of warps meet at mbarriers.
MEETING = """\
========= COMPUTE-SANITIZER
attnoracle: waits at mbarriers: _sparse_mqa_kernel
========= Error: Race reported between Read access at _sparse_mqa_kernel+0x4a10 in sparse_tiles.py:241
=========     and Write access at _sparse_mqa_kernel+0x2530 in sparse_mqa.py:177 [128 hazards]
=========
attnoracle: the target is done
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def races(text):
    def report(name):
        printed = text if name == "racecheck" else CLEAN.replace("=========", f"{DONE}\n=========", 1)
        return run("compute-sanitizer", name, CASE.id, "x/y", runner=lambda *_: printed)

    return judged(CASE, "x/y", report)


def test_a_race_where_the_tool_does_not_follow_the_barriers_is_weak():
    found = races(MEETING)
    assert (found.status, found.proved, found.bad) == ("WEAK", False, False)
    assert (
        "sparse_tiles.py:241, and write at sparse_mqa.py:177; racecheck does not follow the mbarriers" in found.reason
    )


def test_a_race_of_another_kernel_stays_a_failure():
    planted = MEETING.replace("1 hazard displayed (1 error", "2 hazards displayed (2 errors").replace(
        "=========\nattnoracle: the target",
        "=========\n========= Error: Race reported between Write access at _planted_kernel+0x80 in planted.py:9\n"
        "=========     and Read access at _planted_kernel+0x90 in planted.py:10 [4 hazards]\n"
        "=========\nattnoracle: the target",
    )
    found = races(planted)
    assert found.status == "FAIL" and found.reason.startswith(
        "racecheck: Race reported between Write access at _planted"
    )
    assert [one.proved for one in found.findings] == [True, False]
    assert races(MEETING.replace(": _sparse_mqa_kernel", ": _other_kernel")).status == "FAIL"
    hidden = races(MEETING.replace("(1 error", "(2 errors"))
    assert hidden.status == "FAIL" and "2 errors by its summary, 1 shown" in hidden.reason


def test_other_tools_are_believed_of_such_a_kernel():
    found = judged(
        CASE,
        "x/y",
        lambda name: replace(
            parse(MEMCHECK if name == "memcheck" else NO_RACE, name), meeting=frozenset({"matmul_kernel"})
        ),
    )
    assert found.status == "FAIL" and found.proved


def test_a_tool_that_did_not_finish_is_no_weak_verdict():
    found = judged(
        CASE,
        "x/y",
        lambda name: run("", name, CASE.id, "x/y", runner=lambda *_: MEETING if name == "racecheck" else None),
    )
    assert found.status == "ERROR" and "did not come back" in found.reason


def test_kernels_that_wait_at_mbarriers_are_named_by_their_code(tmp_path, capsys):
    for name, code in (
        ("waits", "mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;"),
        ("meets", "bar.sync 0;"),
    ):
        (tmp_path / f"{name}.ptx").write_text(code)
        _listen(metadata={"name": name}, metadata_group={f"{name}.ptx": str(tmp_path / f"{name}.ptx")}, cache_hit=True)
    assert meeting(capsys.readouterr().out) == {"waits"}


def test_a_warning_alone_is_no_failure():
    text = RACECHECK.replace("(1 error, 1 warning)", "(0 errors, 1 warning)").replace(
        "= Error: Race", "= Warning: Race"
    )
    found = verdict(racecheck=text)
    assert found.status == "PASS" and found.measures["warnings"] == 1.0


def test_an_unfinished_tool_hides_no_finding():
    found = judged(
        CASE,
        "x/y",
        lambda tool: Report(tool, (), None, trouble="gone") if tool != "memcheck" else parse(MEMCHECK, tool),
    )
    assert found.status == "FAIL"
