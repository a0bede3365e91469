"""The HTML page as people meet it: in a real browser without a window, light and dark, on a desk and on a phone."""

import time

import pytest

from attnoracle.benchmarks.browser import NAMES, Browser, chromium
from attnoracle.oracle.reports.page import Attached, page
from attnoracle.oracle.reports.summary import Summary
from attnoracle.oracle.verdict import Finding

pytestmark = pytest.mark.skipif(chromium() is None, reason=f"no Chromium: none of {', '.join(NAMES)} is on the PATH")

EVIL = "<script>alert(1)</script>"
HOSTILE = f"{EVIL}\"'><img src=x onerror=alert(2)>{{{{ 7 * 7 }}}} </style> javascript:alert(3) \x00\x1b[31m \ud800 ‮"
PHONE = {"width": 390, "height": 844, "phone": True}
MANY = 2000
SIZES = [{}, PHONE]


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def write(tmp_path):
    def write(verdicts, **attached):
        path = tmp_path / "page.html"
        text = page(verdicts, Summary.of(verdicts, 9.5), {"torch": HOSTILE}, attached=Attached(**attached))
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def run(make_verdict, failure):
    """Every status, a failure with a map, one of a hostile kernel, one that is diagnosed."""
    squares = tuple(tuple(float(10.0 ** ((i + j) % 5 - 2)) for i in range(32)) for j in range(16))
    evil = make_verdict(
        "FAIL", f"sparse_mqa/{EVIL}", reason=HOSTILE, error_map=squares, findings=(Finding("row", HOSTILE, True),)
    )
    others = [make_verdict(status, reason=HOSTILE) for status in ("ERROR", "WEAK", "SUSPECT", "UNSUPPORTED")]
    return [make_verdict(measures={"element": 0.3}), failure, evil, *others]


def _diagnosis(verdict):
    idea = {"words": HOSTILE, "stage": "mask", "explained": 0.97, "fits": True, "same_here": [{"words": EVIL}]}
    stage = {"stage": "mask", "why": HOSTILE}
    who = {"case": {"id": verdict.case.id}, "implementation": verdict.implementation}
    return who | {"conclusion": HOSTILE, "hypotheses": [idea], "stage": stage}


ROUTE = {
    "batch": "8q1s2k", "runs": EVIL, "skip": True, "hazards": [HOSTILE],
    "steps": [{"name": "route", "answer": HOSTILE, "reasons": ["a"], "steps": [
        {"name": "inner", "answer": "no", "reasons": ["a", "b"], "steps": []}]}],
}  # fmt: skip
AUDIT = {"faults": [{"name": EVIL, "checks": []}, {"name": "f", "checks": ["element"]}]}


def _open_all(seen):
    seen.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")


@pytest.mark.parametrize("size", SIZES, ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_fetches_nothing_runs_nothing_and_can_be_read(browser, write, run, size, dark):
    path = write(run, diagnoses=[_diagnosis(run[1])], routes=[ROUTE], audit=AUDIT)
    seen = browser.open(path, dark=dark, **size)
    _open_all(seen)
    wide, there = seen.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= there == size.get("width", 1280)
    sent = [one["request"]["url"] for one in seen.told("Network.requestWillBeSent")]
    assert sent[0] == path.as_uri() and all(url.startswith("data:") for url in sent[1:])
    assert seen.told("Page.javascriptDialogOpening", "Runtime.exceptionThrown", "Log.entryAdded") == []
    assert seen.evaluate("document.querySelectorAll('script, main img').length") == 2, "ours, and the map"
    map_ = "(async one => { one.scrollIntoView(); await one.decode(); return one.naturalWidth; })(document.images[0])"
    assert seen.evaluate(map_) == 32
    assert EVIL in seen.evaluate("document.querySelector('#matrix').innerText")
    assert "49" not in seen.evaluate("document.body.innerText").replace("{{ 7 * 7 }}", "")
    assert seen.evaluate(_LEAST_CONTRAST) >= 4.5, "WCAG 2.2, 1.4.3"


#: The least contrast of any text with what lies behind it (WCAG 2.2, relative luminance).
_LEAST_CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = one => {
    const colour = one ? parts(getComputedStyle(one).backgroundColor) : [255, 255, 255];
    return colour.length < 4 || colour[3] ? colour : behind(one.parentElement);
  };
  const told = one => one.offsetParent && [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const contrast = one => {
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  return Math.min(...[...document.querySelectorAll("body *")].filter(told).map(contrast));
})()"""


@pytest.mark.parametrize("size", SIZES, ids=["desk", "phone"])
def test_everything_is_reached_and_opened_by_keyboard(browser, write, run, size):
    seen = browser.open(write(run), **size)
    reached, opened = set(), 0
    for _ in range(60):
        seen.key("Tab")
        tag, ring, where = seen.evaluate(
            "(e => [e.tagName, getComputedStyle(e).outlineStyle, [...document.querySelectorAll('*')].indexOf(e)])"
            "(document.activeElement)"
        )
        if tag == "BODY" or (tag, where) in reached:
            break
        reached.add((tag, where))
        assert ring == "solid", f"{tag}: no ring shows where the focus is"
        if tag == "SUMMARY" and not seen.evaluate("document.activeElement.parentElement.open"):
            seen.key("Enter")
            opened += 1
            assert seen.evaluate("document.activeElement.parentElement.open")
    assert {tag for tag, _ in reached} == {"A", "BUTTON", "SUMMARY", "INPUT", "DIV"} and opened == 2
    seen.evaluate("document.querySelector('button.cell[data-status=ERROR]').focus()")
    seen.key("Enter")
    shown = "[...document.querySelectorAll('#list tbody tr')].filter(one => one.offsetParent).length"
    assert (seen.evaluate(shown), seen.evaluate("document.activeElement.id")) == (1, "filter")
    assert seen.evaluate("document.querySelector('#shown').textContent") == "1 of 7 shown"
    seen.evaluate("document.querySelector('#filter').select()")
    seen.write("sparse_mqa FAIL")
    assert seen.evaluate(shown) == 2
    seen.evaluate("document.querySelector('#list a').focus()")
    seen.key("Enter")
    # A link within the page moves the focus once the browser has scrolled.
    until = time.monotonic() + 5.0
    while seen.evaluate("document.activeElement.tagName") != "SUMMARY" and time.monotonic() < until:
        time.sleep(0.05)
    assert seen.evaluate("document.activeElement.tagName") == "SUMMARY", "a failure in the list leads to its details"


def test_two_thousand_verdicts_are_small_and_usable_at_once(browser, write, make_verdict, failure, make_case):
    square = tuple(tuple(float((i * j) % 7) for i in range(32)) for j in range(32))
    verdicts = []
    for seed in range(MANY):
        name = f"sparse_mqa/kernel-{seed % 40}"
        case = make_case(seed=seed)
        if seed % 7:
            verdicts.append(make_verdict("PASS", name, case=case, measures={"element": seed / MANY}))
        else:
            found = {"findings": failure.findings, "worst": failure.worst, "error_map": square}
            verdicts.append(make_verdict("FAIL", name, case=case, reason=failure.reason, **found))
    started = time.process_time()
    path = write(verdicts)
    assert time.process_time() - started < 10.0
    assert path.stat().st_size < 3e6
    # By the processor, not the clock: the machine may be busy with other things.
    before = browser.processor_seconds()
    opened = browser.open(path)
    assert 0.0 < browser.processor_seconds() - before < 2.0
    took = opened.evaluate(
        "(() => { const start = performance.now(); filter.value = 'FAIL kernel-7';"
        " filter.dispatchEvent(new Event('input')); document.body.offsetHeight; return performance.now() - start; })()"
    )
    assert took < 2000.0 and opened.evaluate("document.querySelector('#shown').textContent").startswith("8 of 2000")
