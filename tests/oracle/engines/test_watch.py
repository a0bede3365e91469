"""A layer in an engine's shape, watched: right, wrong in the ways of vllm#52512, and a kernel that is off."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.engines import captured
from attnoracle.oracle.engines.captured import judge, load
from attnoracle.oracle.engines.shape import VLLM, Shape
from attnoracle.oracle.engines.watch import MARK, Limits, Watch
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.replay.scene_rig import DEPLOYMENT, scaled_rules
from attnoracle.oracle.replay.steps_incident import Scaled
from attnoracle.reference.routing import Deployment

FACTS = {**DEPLOYMENT, "wrapper": "generic"}


@pytest.fixture(scope="module")
def engine() -> ModuleType:
    path = Path(__file__).with_name("engine_layer.py")
    spec = importlib.util.spec_from_file_location("engine_layer_under_watch", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Model:
    """Two layers and the step that both are told."""

    def __init__(self, engine: ModuleType, folder: Path | None, **how: Any) -> None:
        self.engine, self.now = engine, None
        buffer = torch.zeros(64, engine.TOPK, dtype=torch.int32)
        self.layers = [
            engine.EngineLayer("layers.0", buffer, **how),
            engine.EngineLayer("layers.1", buffer, indexer=False, **how),
        ]
        deployment = Deployment(**FACTS)
        rules = scaled_rules("vllm-0.33", Scaled(), deployment)
        self.watch = Watch(rules, deployment, lambda layer: self.now, folder=folder, limits=Limits(cases=2, queries=8))
        for layer in self.layers:
            self.watch.attach(layer)

    def step(self, requests: list[tuple[int, int]]) -> None:
        self.now = self.engine.metadata(requests)
        for layer in self.layers:
            layer(self.now)

    def broken(self) -> set[str]:
        self.watch.detach()
        return {violation.rule for violation in self.watch.violations}


def test_a_right_layer_breaks_nothing(engine: ModuleType, tmp_path: Path) -> None:
    model = Model(engine, tmp_path)
    for requests in ([(6, 0)], [(1, 6)], [(1, 7), (5, 0)], [(20, 0)], [(1, 20), (1, 8)]):
        model.step(requests)
    assert model.broken() == set()
    assert model.watch.steps == 5
    assert [judge(load(path)).findings for path in model.watch.saved] == [[]] * 4


def test_a_layer_that_never_runs_mha_is_seen(engine: ModuleType) -> None:
    """The indexer skips, sparse MQA reads what it left."""
    model = Model(engine, None, runs_mha=False)
    model.step([(20, 0)])
    model.step([(6, 0)])
    assert {"route", "topk-computed"} <= model.broken()
    assert {one.step for one in model.watch.violations} == {2}


def test_a_skip_beside_a_decode_is_seen(engine: ModuleType) -> None:
    model = Model(engine, None)
    model.step([(6, 0)])
    model.layers[0]._modules["indexer"].always_skips = True
    model.step([(1, 6), (5, 0)])
    assert {"skip", "topk-computed"} <= model.broken()


def test_a_kernel_that_is_off_is_seen_in_what_was_saved(engine: ModuleType, tmp_path: Path) -> None:
    model = Model(engine, tmp_path)
    for layer in model.layers:
        layer.impl.error = 0.02
    model.step([(20, 0)])
    assert model.broken() == set()
    assert all(judge(load(path)).findings for path in model.watch.saved)
    assert main(["capture", "--judge", *map(str, model.watch.saved)]) == 1


def test_the_layer_is_left_as_it_was(engine: ModuleType) -> None:
    model = Model(engine, None)
    model.step([(6, 0)])
    model.broken()
    layer = model.layers[0]
    assert isinstance(layer.indexer, torch.nn.Module)
    assert not set(vars(layer.impl)) & {"forward_mqa", "forward_mha"}
    assert "indexer" not in vars(layer)
    assert not bool((layer.topk_indices_buffer == MARK).any())


def test_files_are_bounded(engine: ModuleType, tmp_path: Path) -> None:
    model = Model(engine, tmp_path)
    for _ in range(5):
        model.step([(40, 0)])
    model.broken()
    assert len(model.watch.saved) == 4
    call = load(model.watch.saved[0])
    assert len(call.inputs["q"]) == 8 and len(call.inputs["kv"]) <= 8 + engine.TOPK
    assert call.inputs["scale"] == engine.SCALE


def test_a_wrapper_with_a_shape_of_its_own(engine: ModuleType) -> None:
    """As in vLLM: the wrapper calls the indexer, what is under it attends; a layer may share although it has one."""
    buffer = torch.zeros(64, engine.TOPK, dtype=torch.int32)
    inner = engine.EngineLayer("layers.0", buffer)
    inner.impl.topk_indices_buffer = buffer
    wrapper = SimpleNamespace(mla_attn=inner, indexer=inner.indexer, skip_topk=False, kv_lora_rank=engine.LATENT)
    model = Model(engine, None)
    model.watch.detach()
    model.watch.shape = VLLM
    model.watch.attach(wrapper)
    model.watch.attach(SimpleNamespace(**{**vars(wrapper), "skip_topk": True}))
    assert [one.kind for one in model.watch._layers] == ["full", "shared"]


def test_a_layer_of_another_shape_is_refused(engine: ModuleType) -> None:
    with pytest.raises(BadInput, match="expected an attribute layer_name"):
        Watch(None, None, lambda layer: None).attach(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    assert Shape().mqa == "impl.forward_mqa"


SCRIPT = """
import torch
import engine_layer as engine

NOW = []
if __name__ == "__main__":
    buffer = torch.zeros(64, engine.TOPK, dtype=torch.int32)
    layer = engine.EngineLayer("layers.0", buffer)
    layer.impl.error = {error}
    for requests in ([(20, 0)], [(1, 20)]):
        engine.STEP = engine.metadata(requests)
        layer(engine.STEP)
    print("done")
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    text = Path(__file__).with_name("engine_layer.py").read_text()
    more = "\n\ndef now(layer):\n    return STEP\n\n\n"
    more += "from attnoracle.oracle.engines.shape import Shape\n\nSHAPE = Shape()\n"
    (tmp_path / "engine_layer.py").write_text(text + more)
    (tmp_path / "run.py").write_text(SCRIPT.format(error=0.0))
    facts = "\n".join(f"{name} = {json.dumps(value)}" for name, value in FACTS.items())
    (tmp_path / "deployment.toml").write_text(facts)
    yield tmp_path / "run.py"
    import sys

    sys.modules.pop("engine_layer", None)


def test_the_command(script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = script.parent
    facts = ["--deployment", str(folder / "deployment.toml"), "--out", str(folder / "calls")]
    assert main(["capture", *NAMES, *facts, "--json", "-", str(script)]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["summary"]["steps"] == 2 and document["violations"] == []
    assert "2 steps watched, 2 calls saved, 0 violations" in told.err
    (folder / "mine.toml").write_text('name = "mine"\ndate = "now"\nsource = "a test"\nbased_on = "vllm-47327"\n')
    assert main(["capture", *NAMES, *facts, "--rules", str(folder / "mine.toml"), str(script)]) == 0
    files = [one["file"] for one in document["files"]]
    assert main(["capture", "--judge", *files]) == 0
    assert capsys.readouterr().out.count("PASS") == 2


NAMES = ["--layer", "engine_layer:EngineLayer", "--metadata", "engine_layer:now", "--shape", "engine_layer:SHAPE"]


def run(script: Path, text: str) -> int:
    folder = script.parent
    script.write_text(text)
    facts = ["--deployment", str(folder / "deployment.toml"), "--out", str(folder / "calls")]
    return main(["capture", *NAMES, *facts, str(script)])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise ValueError('no weights')", "run.py:7 in <module>: raise ValueError('no weights')"),
        ("torch.zeros(2) @ torch.zeros(3)", "run.py:7 in <module>: torch.zeros(2) @ torch.zeros(3)"),
        ("layer(engine.STEP.nothing)", "the script raised AttributeError"),
        ("def (", "the script raised SyntaxError"),
        ("engine.STEP = object(); layer(engine.STEP)", "engine_layer.py"),
        (
            "del engine.STEP.seq_lens; layer(engine.STEP)",
            "expected a field seq_lens of the step's metadata, found none",
        ),
        ("del engine.STEP.block_table; layer(engine.STEP)", "has no attribute 'block_table'"),
    ],
)
def test_what_the_script_raises_is_told_as_its_own(
    script: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    head = "import torch\nimport engine_layer as engine\n\nbuffer = torch.zeros(64, engine.TOPK, dtype=torch.int32)\n"
    head += "layer = engine.EngineLayer('layers.0', buffer)\nengine.STEP = engine.metadata([(1, 20)])\n"
    assert run(script, head + line) == 2
    told = capsys.readouterr().err
    assert said in told and "failure of attnoracle" not in told


def test_what_the_watch_raises_is_a_failure_of_ours(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the package's own file, not as that of a test.
    code = compile("def keep(*rest):\n    raise RuntimeError('planted')\n", str(captured.__file__), "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    monkeypatch.setattr(Watch, "_keep", space["keep"])
    assert run(script, SCRIPT.format(error=0.0)) == 3
    assert "a failure of attnoracle itself" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the script's kernels are compiled")
def test_triton_kernels_of_a_script_are_interpreted_without_a_gpu(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    text = """
import torch
import triton
import triton.language as tl

@triton.jit
def more(x, n: tl.constexpr):
    tl.store(x + tl.arange(0, n), tl.load(x + tl.arange(0, n)) + 1)

x = torch.zeros(8)
more[(1,)](x, n=8)
assert x.sum() == 8
"""
    assert run(script, text + SCRIPT.format(error=0.0)) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["capture"], "expected a script"),
        (["capture", "run.py"], "expected --deployment"),
        (["capture", "run.py", "--deployment", "{deployment}"], "cannot import vllm"),
        (["capture", "--judge", "{deployment}"], "expected a safetensors file"),
    ],
)
def test_what_cannot_be_asked_is_exit_2(
    script: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    if importlib.util.find_spec("vllm") is not None and "vllm" in said:
        pytest.skip("vllm is installed here")
    named = [part.format(deployment=script.parent / "deployment.toml") for part in arguments]
    assert main(named) == 2
    assert said in capsys.readouterr().err
