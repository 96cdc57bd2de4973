"""What kind of work a kernel is, told by its name: a table, so that a new family is a row and a test line.

Rows are tried in order, so the narrow ones stand first. Each distinct name is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

UNCATEGORISED: Final = "other"
COMMUNICATION: Final = "communication"
COPY_CATEGORIES: Final = {
    "HtoD": "copy to device",
    "DtoH": "copy to host",
    "DtoD": "copy on device",
    "PtoP": "copy between devices",
}
MEMSET: Final = "memset"
"""A fill by the driver; kernels that fill are a category of kernels."""

CATEGORIES: Final[tuple[tuple[str, str], ...]] = (
    (
        COMMUNICATION,
        r"nccl(?:Dev)?Kernel|^nccl|rccl|hccl|oneccl|nvshmem|deep_ep|all_?reduce|allgather|reduce_?scatter|all_?to_?all|multimem",
    ),
    ("reduction", r"^triton_(?:red|per)"),
    ("elementwise", r"^triton_poi"),
    ("attention", r"flash|fmha|attention|sdpa|mha_(?:fwd|bwd)|paged_attn"),
    ("embedding", r"embedding|fbgemm|bounds_check"),
    (
        "convolution",
        r"conv(?!ert)|scudnn|hcudnn|\d(?:cudnn)|cudnn_(?:volta|turing|ampere|hopper)|winograd|dgrad|wgrad|fprop|implicit_gemm|fft[12]d|flip_filter|cask_cudnn",
    ),
    (
        "gemm",
        r"gemm|gemv|nvjet|splitKreduce|cublas|cutlass|dot_kernel|reduce_1Block|epilogue::impl|^triton_(?:mm|tem)",
    ),
    (
        "layout",
        r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|transpose|permute|im2col|col2im|TensorTransform|scalePackedTensor",
    ),
    (
        "normalisation",
        r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|cudnn.*bn_|(?:^|[:_])bn_[bf]w|(?:^|[:_ ])norm_|RowwiseMoments|GammaBeta|ComputeInternalGradients",
    ),
    ("softmax", r"softmax"),
    ("loss", r"nll_loss|ClassNLL|cross_entropy|bce|mse_loss|smooth_l1"),
    ("pooling", r"pool|interpolat|upsample|roi_align|grid_sampl"),
    (
        "optimizer",
        r"multi_tensor_apply|fused_?(?:adam|sgd|lamb)|adam|sgd_kernel|momentum|multi_tensor|foreach",
    ),
    (
        "embedding",
        r"indexing_backward|gather|scatter|index_(?:select|put|add|copy|fill|kernel|elementwise)|indexSelect|linearize_index",
    ),
    ("random", r"distribution|philox|dropout|random|curand|bernoulli"),
    ("fill", r"FillFunctor|fill_kernel|arange|fill_reverse_indices|memset"),
    (
        "cast or copy",
        r"copy_kernel|copy_device_to_device|CatArray|direct_copy|LoadWithCast|StoreWithCast|cast|concat|slice|split_kernel|TensorCopy",
    ),
    ("sort or scan", r"cub::|thrust|radix|sort|scan|topk|bitonic|unique|nms|searchsorted|cumsum"),
    ("reduction", r"reduce|argmax|argmin|\bnorm\b"),
    (
        "elementwise",
        r"elementwise|Functor|pointwise|triton_poi|Eltwise|activation|relu|gelu|silu|threshold|op_tensor|OpTensor|rotary|swiglu|bias",
    ),
    ("elementwise", r"^triton_"),
)

OPERATORS: Final[tuple[tuple[str, str], ...]] = (
    (COMMUNICATION, r"c10d::|gloo|^broadcast"),
    (
        "optimizer",
        r"_foreach_|_fused_|^(?:sgd|adam|adamw|momentum|merged_\w+|lamb)_?(?:\s|$)|Optimizer",
    ),
    ("loss", r"nll_loss|NllLoss|cross_entropy|CrossEntropy"),
    ("normalisation", r"batch_?norm|BatchNorm|layer_?norm|LayerNorm|group_?norm|GroupNorm"),
    (
        "gemm",
        r"addmm|[Mm]atmul|\b(?:aten::)?(?:bmm|mm|linear|einsum|addbmm|baddbmm)\b|: (?:Addmm|Mm|Bmm|Baddbmm|Linear)Backward|^fc\b",
    ),
    ("fill", r"zero_|\b(?:aten::)?(?:zeros|ones|full|empty|fill_)\b|_like\b|uniform|gaussian"),
    (
        "layout",
        r"(?:aten::)?\b(?:view|reshape|flatten|squeeze|unsqueeze|t|transpose|permute|expand|contiguous)\b|(?:View|Reshape|Flatten|Transpose|Expand|: T)\w*Backward",
    ),
    ("cast or copy", r"(?:aten::)?\b(?:to|copy_|clone|detach|cat|stack|slice|select|assign)\b"),
    ("reduction", r"(?:aten::)?\b(?:sum|mean|max|min|norm|isnan|item)\b|: (?:Sum|Mean)Backward"),
    (
        "elementwise",
        r"AccumulateGrad|GradNodeAccumulation|(?:Add|Subtract|Multiply|Divide)GradNode|(?:aten::)?\b(?:add|mul|div|sub|neg|exp|log|sqrt|pow|where|clamp|lerp|scale)_?\b|: (?:Add|Mul|Div|Sub)Backward",
    ),
)
"""Operators' names, tried before the kernels' own."""

TENSOR_CORES: Final[tuple[tuple[bool, str], ...]] = (
    (
        False,
        r"simt|ffma|_sgemm|[sdcz]gemm_|_engine<float|scudnn(?!.*(?:1688|16816|884))|gemmSN|gemv|gemmk1|dot_kernel|explicit_convolve|implicit_convolve_sgemm|winograd|fft[12]d|alg[01]_engine",
    ),
    (
        True,
        r"[shi](?:884|8816|1688|16816|16832|161616)(?:gemm|cudnn|fprop|dgrad|wgrad|_|$)|(?:h|s|i)(?:884|1688|16816)",
    ),
    (
        True,
        r"tensorop|tensor\d+x\d+|wmma|[hwgiq]+mma|nvjet|warpgroup|tcgen05|sm(?:90|100)_xmma|_fp8|e4m3|e5m2",
    ),
    (
        True,
        r"xmma_gemm_(?:bf16|f16|tf32|i8)|xmma_(?:fprop|dgrad|wgrad).*(?:bf16|f16|tf32)|bf16_s\d|flash::|flash_(?:fwd|bwd)|fmha",
    ),
)
"""In order; kernels of other than matrix work use none."""

MATRIX_WORK: Final = frozenset({"gemm", "convolution", "attention"})

_CATEGORY = tuple(
    (category, re.compile(pattern, re.IGNORECASE if category != "optimizer" else 0))
    for category, pattern in CATEGORIES
)
_OPERATOR = tuple((category, re.compile(pattern)) for category, pattern in OPERATORS)
_TENSOR_CORE = tuple((used, re.compile(pattern)) for used, pattern in TENSOR_CORES)
LONGEST_LOOKED_AT: Final = 2_000
"""Characters of a name that are looked at: templates go on for longer, and tell nothing new."""


def categorise(name: str) -> str:
    """The kind of work that a kernel of this name does; `other` where no row knows it."""
    shown = name[:LONGEST_LOOKED_AT]
    return next(
        (category for category, pattern in _CATEGORY if pattern.search(shown)), UNCATEGORISED
    )


def categorise_operator(name: str) -> str:
    """The kind of work that a framework's operator does, where operators stand in for kernels."""
    return next(
        (category for category, pattern in _OPERATOR if pattern.search(name[:LONGEST_LOOKED_AT])),
        None,
    ) or categorise(name)


def uses_tensor_cores(name: str, category: str) -> bool | None:
    """Whether the kernel runs on Tensor Cores; null for matrix work whose name does not say."""
    if category not in MATRIX_WORK:
        return None if category == UNCATEGORISED else False
    return next(
        (used for used, pattern in _TENSOR_CORE if pattern.search(name[:LONGEST_LOOKED_AT])), None
    )


def categorise_all(names: Sequence[str]) -> tuple[list[str], list[bool | None]]:
    """Both for each of the distinct names."""
    categories = [categorise(name) for name in names]
    return categories, [
        uses_tensor_cores(name, category) for name, category in zip(names, categories, strict=True)
    ]


def copy_category(name: str) -> str:
    """The direction of a copy, from what CUPTI calls it (`Memcpy HtoD (Pinned -> Device)`)."""
    return next(
        (category for direction, category in COPY_CATEGORIES.items() if direction in name), "copy"
    )
