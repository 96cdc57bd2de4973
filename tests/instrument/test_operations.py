"""The operations of a step are those of the model's formula, and counting changes nothing.

The formulas below are written from the published architectures, and share no code with profkit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from profkit.analysis.overview import build_overview  # noqa: E402
from profkit.clock import read_anchor  # noqa: E402
from profkit.instrument.frameworks.pytorch import arithmetic  # noqa: E402
from profkit.instrument.windows.windows import Window  # noqa: E402
from profkit.trace import Trace  # noqa: E402
from profkit.workloads.hrnet_w18.net import HRNet  # noqa: E402
from profkit.workloads.psenet.net import PSENet  # noqa: E402
from profkit.workloads.training import ops_torch  # noqa: E402
from profkit.workloads.training.network import make_part  # noqa: E402
from profkit.workloads.tsm.net import TSM  # noqa: E402
from tests.harmless.commands import PYTHON, run  # noqa: E402

FORWARD_BACKWARD = 3
"""Each product of the forward has two of the same size in the backward."""

WIDTH, HEADS, LAYERS, TOKENS, WORDS = 64, 4, 2, 48, 200
LENGTHS = [10, 20, 30]


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., arithmetic.Counted]:
    monkeypatch.setattr(arithmetic, "SETTLING_S", 0)

    def run(act: Callable[[], object]) -> arithmetic.Counted:
        return arithmetic.count_during(act, tmp_path / "seen.json")

    return run


# -- convolutions, for one image -------------------------------------------------------------------


def conv(inside: int, outside: int, kernel: int, side: int, times: int = FORWARD_BACKWARD) -> int:
    return 2 * inside * outside * kernel**2 * side**2 * times


def bottlenecks(side: int, stem: int = 64, times: int = FORWARD_BACKWARD, entry: int = 3) -> int:
    """The four stages of a ResNet50 v1.5; `times` is that of the first stage."""
    total, inside = 0, stem
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, each = 64 << stage, FORWARD_BACKWARD if stage else times
        for block in range(blocks):
            is_first = block == 0
            before = side * 2 if is_first and stage else side
            enters = entry if is_first and stage == 1 else each
            total += conv(inside, inner, 1, before, enters)
            total += conv(inner, inner, 3, side, each) + conv(inner, 4 * inner, 1, side, each)
            if is_first:
                total += conv(inside, 4 * inner, 1, side, enters)
            inside = 4 * inner
        side //= 2
    return total


def resnet50(classes: int = 1000) -> int:
    stem = conv(3, 64, 7, 112, times=2)  # images need no gradient
    return stem + bottlenecks(56) + conv(2048, classes, 1, 1)


def mask_rcnn_backbone() -> int:
    """Stem and first stage are frozen, so that nothing before the second needs a gradient."""
    total = conv(3, 64, 7, 112, times=1) + bottlenecks(56, times=1, entry=2)
    for level, width in enumerate((256, 512, 1024, 2048)):
        side = 56 >> level
        total += conv(width, 256, 1, side, times=3 if level else 2) + conv(256, 256, 3, side)
    return total


def hrnet_w18(classes: int = 19) -> int:
    stem = conv(3, 64, 3, 112, times=2) + conv(64, 64, 3, 56)
    first = conv(64, 256, 1, 56)
    for block in range(4):
        first += conv(256 if block else 64, 64, 1, 56) + conv(64, 64, 3, 56) + conv(64, 256, 1, 56)
    widths, sides = (18, 36, 72, 144), (56, 28, 14, 7)
    stages = conv(256, 18, 3, 56) + conv(256, 36, 3, 28)  # of two branches, from the stem
    stages += conv(36, 72, 3, 14) + conv(72, 144, 3, 7)
    for branches, exchanges in ((2, 1), (3, 4), (4, 3)):
        one = 0
        for to in range(branches):
            one += 8 * conv(widths[to], widths[to], 3, sides[to])
            for source in range(branches):
                if source > to:
                    one += conv(widths[source], widths[to], 1, sides[source])
                for hop in range(source + 1, to + 1):
                    outside = widths[to] if hop == to else widths[source]
                    one += conv(widths[source], outside, 3, sides[hop])
        stages += exchanges * one
    joined = sum(widths)
    return stem + first + stages + conv(joined, joined, 1, 56) + conv(joined, classes, 1, 56)


def psenet() -> int:
    stem = conv(3, 64, 3, 112, times=2) + conv(64, 64, 3, 112) + conv(64, 128, 3, 112)
    sides = {256: 56, 512: 28, 1024: 14, 2048: 7}
    pyramid = sum(conv(width, 256, 1, side) for width, side in sides.items())
    pyramid += sum(conv(256, 256, 3, side) for side in (56, 28, 14))
    return stem + bottlenecks(56, stem=128) + pyramid + conv(1024, 256, 3, 56) + conv(256, 7, 1, 56)


def _mask_rcnn_backbone() -> Any:
    net = torchvision.models.detection.backbone_utils
    return net.resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=3)


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], Callable[[], int]]] = {
    "ResNet50": (torchvision.models.resnet50, (2, 3), lambda: 2 * resnet50()),
    "Mask R-CNN": (_mask_rcnn_backbone, (1, 3), mask_rcnn_backbone),
    "TSM": (
        functools.partial(make_part, ops_torch, TSM, 400, 8),
        (1, 8, 3),
        lambda: 8 * resnet50(400),
    ),
    "HRNetW18": (functools.partial(make_part, ops_torch, HRNet, 19), (1, 3), hrnet_w18),
    "PSENet": (functools.partial(make_part, ops_torch, PSENet), (1, 3), psenet),
}


def train_network(build: Callable[[], Any], batch: tuple[int, ...]) -> Callable[[], None]:
    """Return a function that trains a network once, on a device without memory."""
    with torch.device("meta"):
        model = build()
        images = torch.empty(*batch, 224, 224)

    def step() -> None:
        made = model(images)
        outputs = made.values() if isinstance(made, dict) else [made]
        sum(output.sum() for output in outputs).backward()

    return step


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions(name: str, count: Callable[..., arithmetic.Counted]) -> None:
    build, batch, formula = NETWORKS[name]
    found = count(train_network(build, batch))
    assert found.useful == found.everything
    assert found.useful["fp32"] == pytest.approx(formula(), rel=1e-3)


# -- transformers ----------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer of a transformer; `kv_heads` are the heads of keys."""

    def __init__(self, feed: nn.Module, kv_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.kv, self.causal, self.feed = kv_heads, causal, feed
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pair = nn.Linear(WIDTH, 2 * kv_heads * WIDTH // HEADS)

    def forward(self, inputs: Any, mask: Any) -> Any:
        query = self.query(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.pair(inputs).unflatten(-1, (2, self.kv, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.causal, enable_gqa=self.kv != HEADS
        )
        return self.feed(inputs + self.out(mixed.transpose(1, 2).flatten(2)))


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 172, bias=False) for _ in range(2))
        self.down = nn.Linear(172, WIDTH, bias=False)

    def forward(self, inputs: Any) -> Any:
        return self.down(functional.silu(self.gate(inputs)) * self.up(inputs))


class Experts(nn.Module):
    """Four experts, of which each token goes to two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(mlp() for _ in range(4))

    def forward(self, inputs: Any) -> Any:
        rows = inputs.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out = out.index_add(0, row, expert(rows[row]) * weights[row, place, None])
        return out.view_as(inputs)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


class Transformer(nn.Module):
    def __init__(self, block: Callable[[], Block], outputs: int = WORDS) -> None:
        super().__init__()
        self.words, self.patches = nn.Embedding(WORDS, WIDTH), nn.Conv2d(3, WIDTH, 8, stride=8)
        self.blocks = nn.ModuleList(block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, outputs, bias=False)

    def forward(self, inputs: Any, mask: Any = None) -> Any:
        if inputs.is_floating_point():
            inputs = self.patches(inputs).flatten(2).transpose(1, 2)
        else:
            inputs = self.words(inputs)
        for block in self.blocks:
            inputs = block(inputs, mask)
        return self.head(inputs)


def per_token(feed: int, tokens: int, kv_heads: int = HEADS, head: int = WORDS) -> int:
    """Operations per token: weights times six, and each pair of tokens in each layer."""
    attention = WIDTH * WIDTH * 2 + WIDTH * 2 * kv_heads * WIDTH // HEADS
    return 6 * (LAYERS * (attention + feed) + WIDTH * head) + 12 * LAYERS * WIDTH * tokens


def make(feed: Callable[[], nn.Module], kv_heads: int = HEADS, *, causal: bool = False) -> Any:
    return lambda: Transformer(lambda: Block(feed(), kv_heads, causal=causal))


def words(batch: int = 3, tokens: int = TOKENS) -> Any:
    return torch.randint(0, WORDS, (batch, tokens))


def packed() -> Any:
    """Sequences in one row, each of which sees itself."""
    return torch.block_diag(*(torch.ones(each, each) for each in LENGTHS)).bool()


def padded() -> Any:
    return (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None])[:, None, None]


MLP = 8 * WIDTH**2
TRANSFORMERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], int]] = {
    "GPT-2": (make(mlp, causal=True), lambda: (words(),), 144 * per_token(MLP, TOKENS)),
    "Llama": (
        make(SwiGlu, 2, causal=True),
        lambda: (words(),),
        144 * per_token(3 * WIDTH * 172, TOKENS, 2),
    ),
    "BERT": (make(mlp), lambda: (words(),), 144 * per_token(MLP, TOKENS)),
    "ViT": (
        lambda: Transformer(lambda: Block(mlp(), HEADS, causal=False), 10),
        lambda: (torch.randn(3, 3, 48, 48),),
        # The weights of the patches are used twice: images need no gradient.
        3 * 36 * (per_token(MLP, 36, head=10) + 4 * 3 * 8**2 * WIDTH),
    ),
    "MoE": (
        make(Experts, causal=True),
        lambda: (words(),),
        144 * per_token(2 * MLP + 4 * WIDTH, TOKENS),
    ),
    "packed sequences": (make(mlp), lambda: (words(1, 60), packed()), 60 * per_token(MLP, 60)),
    "padded sequences": (make(mlp), lambda: (words(3, 30), padded()), 90 * per_token(MLP, 30)),
}


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str, is_fused: bool, count: Callable[..., arithmetic.Counted]) -> None:
    """Fused attention computes its scores again in the backward, which is no useful operation."""
    build, data, formula = TRANSFORMERS[name]
    backend = nn.attention.SDPBackend
    model, inputs = build(), data()
    with nn.attention.sdpa_kernel(backend.FLASH_ATTENTION if is_fused else backend.MATH):
        found = count(lambda: model(*inputs).sum().backward())
    assert not found.unknown
    assert found.useful["fp32"] == pytest.approx(formula, rel=1e-3)
    assert (found.useful != found.everything) is is_fused


# -- what is counted, and what is not --------------------------------------------------------------


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_recomputed_operations_are_not_useful(
    is_reentrant: bool, count: Callable[..., arithmetic.Counted]
) -> None:
    """A checkpoint that is not reentrant stops before the last layer, whose output is not used."""
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    inputs = torch.randn(4, 8, requires_grad=True)

    def step() -> None:  # a second forward follows the first recomputation
        for _ in range(2):
            checkpoint(layers, inputs, use_reentrant=is_reentrant).sum().backward()

    found, one = count(step), 2 * 4 * 8 * 8
    assert found.is_split
    assert found.useful["fp32"] == 2 * 2 * FORWARD_BACKWARD * one
    assert found.everything["fp32"] - found.useful["fp32"] == 2 * (1 + is_reentrant) * one


def test_a_second_derivative_counts_in_full(count: Callable[..., arithmetic.Counted]) -> None:
    layer, inputs = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        (gradient,) = torch.autograd.grad(layer(inputs).tanh().sum(), inputs, create_graph=True)
        gradient.square().sum().backward()

    found = count(step)
    assert not found.is_split
    assert found.useful == found.everything


def test_operators_without_a_formula_are_named(count: Callable[..., arithmetic.Counted]) -> None:
    found = count(lambda: nn.LSTM(8, 8)(torch.randn(3, 2, 8))[0].sum().backward())
    assert "aten::lstm" in found.unknown or found.everything["fp32"]
    assert not count(lambda: torch.randn(4, 4).sin().sum()).unknown


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda a, b: a.addmm_(a, b), {"fp32": 2 * 6**3}),
        (lambda a, b: torch.addbmm(a, a[None], b[None]), {"fp32": 2 * 6**3}),
        (lambda a, b: a.half() @ b.half(), {"fp16": 2 * 6**3}),
        (lambda a, b: functional.conv_transpose1d(a, b[:, None]), {"fp32": 2 * 6**3}),
        (lambda a, b: functional.conv3d(a[None, None, None], b[None, None, None]), {"fp32": 72}),
        (lambda a, b: functional.conv1d(a[None], b[:, :3, None], groups=2), {"fp32": 216}),
        (
            lambda a, b: torch._grouped_mm(
                a.new_ones(6, 16).bfloat16(),
                a.new_ones(2, 16, 8).bfloat16(),
                offs=torch.tensor([2, 6], dtype=torch.int32),
            ),
            {"bf16": 2 * 6 * 16 * 8},
        ),
    ],
)
def test_operators(
    act: Callable[[Any, Any], Any],
    expected: dict[str, int],
    count: Callable[..., arithmetic.Counted],
) -> None:
    found = count(lambda: act(torch.ones(6, 6), torch.ones(6, 6)))
    assert dict(found.everything) == expected
    assert not found.unknown


def test_a_process_that_the_job_forks_is_not_observed(tmp_path: Path) -> None:
    """It would write to the same file."""
    notes: list[Any] = []
    counter = arithmetic.Arithmetic(notes.append)
    assert counter.start()
    child = os.fork()
    if not child:
        torch.ones(2, 2).mm(torch.ones(2, 2))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    save = counter.stop()
    assert save is not None
    save(tmp_path / "seen.json")
    window = Window(read_anchor(), 0, [0, 1], [])
    assert counter.read_rows(tmp_path / "seen.json", window) == []
    assert "forked" in notes[0].name
    assert "aten::mm" not in (tmp_path / "seen.json").read_text()


# -- real jobs -------------------------------------------------------------------------------------

RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SCRIPT = Path(__file__).parent / "jobs" / "operations_torch.py"


@pytest.mark.jobs
@pytest.mark.parametrize("kind", ["plain", "checkpoint", "compile", "ddp"])
def test_a_counted_job_computes_the_same(kind: str, tmp_path: Path) -> None:
    ranks = RANKS if kind == "ddp" else ()
    command = (PYTHON, "-W", "ignore", *ranks, SCRIPT, kind)
    bare = run(command, tmp_path, recorded=False)
    counted = run(command, tmp_path, recorded=True, options=("--operations", "3:4"))
    assert bare.code == counted.code == 0, counted.err
    assert counted.out == bare.out
    assert counted.out.count("0x") == 9
    view = build_overview(Trace.open(counted.runs[0]))
    if kind == "compile":
        assert view.utilisation is None
        assert any("torch.compile fuses operators" in notice for notice in view.quality)
        return
    found = view.utilisation
    assert found is not None
    products = 2 * 1568 * 32 + 2 * 32 * 4
    convolution = 2 * 27 * 8 * 14 * 14
    assert found.useful_flops == {"fp32": 2 * (3 * products + 2 * convolution)}
    recomputed = 2 * 2 * 1568 * 32 if kind == "checkpoint" else 0
    assert found.flops["fp32"] - found.useful_flops["fp32"] == recomputed
