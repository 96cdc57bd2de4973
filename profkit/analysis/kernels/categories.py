"""The kind of work that a kernel does, by its name.

The tables below hold patterns: a new family is a row and a test line. Rows are tried in order, so
the narrow ones come first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final, TypeVar

UNCATEGORISED: Final = "other"
COMMUNICATION: Final = "communication"
CUDA_GRAPH: Final = "CUDA graph"
"""The launch of a graph that was traced as a whole; its kernels are not known."""
COPY_CATEGORIES: Final = {
    "HtoD": "copy to device",
    "DtoH": "copy to host",
    "DtoD": "copy on device",
    "PtoP": "copy between devices",
}
_ROCM_DIRECTIONS: Final = {"HtoD": "HostToDevice", "DtoH": "DeviceToHost", "DtoD": "DeviceToDevice"}
MEMSET: Final = "memset"
"""A fill by the driver; kernels that fill have a category of their own."""

CATEGORIES: Final[tuple[tuple[str, str], ...]] = (
    (
        COMMUNICATION,
        (
            r"nccl(?:Dev)?Kernel|^nccl|rccl|hccl|oneccl|mscclpp|nvshmem|deep_?ep|dpsk::ep|"
            r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|multimem|userbuffers_|"
            r"cross_device_reduce|(?:one|two)_?shot_"
        ),
    ),
    (CUDA_GRAPH, r"^CUDA graph \d"),
    ("reduction", r"^triton_(?:red|per)"),
    ("elementwise", r"^triton_poi"),
    ("cast or copy", r"reshape_and_cache|concat_and_cache|set_(?:mla_)?kv_buffer"),
    ("gemm", r"gemm_accum"),
    (
        "attention",
        (
            r"flash(?!infer::)|fmha|attention|sdpa|mha_(?:fwd|bwd)|(?:^|[^a-z])attn|KVCacheKernel|"
            r"bwd_kernel_d[kq]|qk_int\d_sv|compute_dot_do_o|convert_dq_to"
        ),
    ),
    ("elementwise", r"rotary|(?:^|[^a-z])rope(?![a-z])"),
    ("embedding", r"embedding|fbgemm(?!.*gemm)|bounds_check"),
    (
        "convolution",
        (
            r"conv(?!ert)|scudnn|hcudnn|\d(?:cudnn)|cudnn_(?:volta|turing|ampere|hopper)|winograd|"
            r"dgrad|wgrad|fprop|implicit_gemm|igemm_(?:fwd|bwd|wrw)|fft[12]d|flip_filter|"
            r"cask_cudnn"
        ),
    ),
    (
        "gemm",
        (
            r"gemm|gemv|matmul|(?:^|[^a-z])(?:b|add|badd)?mm(?![a-z])|Cijk_|fused_moe_kernel|"
            r"marlin|machete|wvSplitK|nvjet|splitKreduce|cublas|cutlass|dot_kernel|reduce_1Block|"
            r"epilogue::impl|^triton_tem"
        ),
    ),
    (
        "layout",
        (
            r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|transpose|permute|im2col|col2im|"
            r"TensorTransform|scalePackedTensor"
        ),
    ),
    (
        "normalisation",
        (
            r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|cudnn.*bn_|"
            r"(?:^|[:_])bn_[bf]w|(?:^|[:_])ln_(?:fwd|bwd)|"
            r"(?:^|[:_ ])norm_|RowwiseMoments|GammaBeta|ComputeInternalGradients"
        ),
    ),
    ("softmax", r"softmax"),
    ("loss", r"nll_loss|ClassNLL|cross_entropy|bce|mse_loss|smooth_l1"),
    ("pooling", r"pool|interpolat|upsample|roi_align|grid_sampl"),
    (
        "optimizer",
        (
            r"(?-i:multi_tensor_apply|fused_?(?:adam|sgd|lamb)|adam|sgd_kernel|momentum|"
            r"multi_tensor|foreach)"
        ),
    ),
    ("sort or scan", r"top_?k|nms|gather_keep_from_mask"),
    (
        "gather or scatter",
        (
            r"indexing_backward|gather|scatter|index_(?:select|put|add|copy|fill|kernel|"
            r"elementwise)|indexSelect|linearize_index"
        ),
    ),
    ("random", r"distribution|philox|dropout|random|curand|rocrand|bernoulli|sampling"),
    ("fill", r"FillFunctor|fill_kernel|arange|fill_reverse_indices|memset"),
    ("elementwise", r"elementwise_kernel<(?!.*copy)"),
    (
        "cast or copy",
        (
            r"copy_kernel|copy_device_to_device|CatArray|direct_copy|"
            r"(?<!no)(?<!broad)cast|concat|slice|split_kernel|TensorCopy|quant"
        ),
    ),
    (
        "sort or scan",
        (
            r"cub::|thrust|rocprim|radix|sort|scan|moe_align|bitonic|unique|searchsorted|cumsum|"
            r"write_indices"
        ),
    ),
    ("reduction", r"reduce|argmax|argmin|\bnorm\b|lpnorm_cleanup"),
    (
        "elementwise",
        (
            r"elementwise|Functor|pointwise|Eltwise|activation|relu|gelu|silu|threshold|"
            r"op_tensor|OpTensor|swiglu|act_and_mul|bias"
        ),
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
    (
        "gemm",
        (
            r"addmm|[Mm]atmul|\b(?:aten::)?(?:bmm|mm|linear|einsum|addbmm|baddbmm)\b|: (?:Addmm|Mm|"
            r"Bmm|Baddbmm|Linear)Backward|^fc\b"
        ),
    ),
    ("fill", r"zero_|\b(?:aten::)?(?:zeros|ones|full|empty|fill_)\b|_like\b|uniform|gaussian"),
    (
        "layout",
        (
            r"(?:aten::)?\b(?:view|reshape|flatten|squeeze|unsqueeze|t|transpose|permute|expand|"
            r"contiguous)\b|(?:View|Reshape|Flatten|Transpose|Expand|: T)\w*Backward"
        ),
    ),
    ("cast or copy", r"(?:aten::)?\b(?:to|copy_|clone|detach|cat|stack|slice|select|assign)\b"),
    ("reduction", r"(?:aten::)?\b(?:sum|mean|max|min|norm|isnan|item)\b|: (?:Sum|Mean)Backward"),
    (
        "elementwise",
        (
            r"AccumulateGrad|GradNodeAccumulation|(?:Add|Subtract|Multiply|Divide)GradNode|"
            r"(?:aten::)?\b(?:add|mul|div|sub|neg|exp|log|sqrt|pow|where|clamp|lerp|scale)_?\b|"
            r": (?:Add|Mul|Div|Sub)Backward"
        ),
    ),
)
"""Patterns of operators' names, tried before those of kernels."""

TENSOR_CORES: Final[tuple[tuple[bool, str], ...]] = (
    (
        False,
        (
            r"simt|ffma|_sgemm|[sdcz]gemm_|_engine<float|scudnn(?!.*(?:1688|16816|884))|gemmSN|"
            r"gemv|gemmk1|dot_kernel|explicit_convolve|implicit_convolve_sgemm|winograd|fft[12]d|"
            r"alg[01]_engine"
        ),
    ),
    (
        True,
        (
            r"[shi](?:884|8816|1688|16816|16832|161616)(?:gemm|cudnn|fprop|dgrad|wgrad|_|$)|"
            r"(?:h|s|i)(?:884|1688|16816)"
        ),
    ),
    (
        True,
        (
            r"tensorop|tensor\d+x\d+|wmma|[hwgiq]+mma|nvjet|warpgroup|tcgen05|sm(?:90|100)_xmma|"
            r"_fp8|e4m3|e5m2"
        ),
    ),
    (
        True,
        (
            r"xmma_gemm_(?:bf16|f16|tf32|i8)|xmma_(?:fprop|dgrad|wgrad).*(?:bf16|f16|tf32)|"
            r"bf16_s\d|flash::|flash_(?:fwd|bwd)|fmha"
        ),
    ),
)
"""Patterns of matrix work, tried in order; other kernels use no Tensor Cores."""

MATRIX_WORK: Final = frozenset({"gemm", "convolution", "attention"})

LONGEST_NAME: Final = 2_000
"""Only this many characters of a name are matched: templates go on, and tell nothing new."""

_T = TypeVar("_T")


def _compile(
    table: Sequence[tuple[_T, str]], flags: int = 0
) -> tuple[tuple[_T, re.Pattern[str]], ...]:
    return tuple((value, re.compile(pattern, flags)) for value, pattern in table)


_CATEGORY = _compile(CATEGORIES, re.IGNORECASE)
_OPERATOR = _compile(OPERATORS)
_TENSOR_CORE = _compile(TENSOR_CORES)


def categorise(name: str) -> str:
    """Return the kind of work that a kernel of this name does; `other` if no row matches."""
    return _categorise(name[:LONGEST_NAME])


@functools.lru_cache(maxsize=8_192)
def _categorise(name: str) -> str:
    """Search all rows, which takes a millisecond; the ranks of a job have the same names."""
    return _first_match(_CATEGORY, name) or UNCATEGORISED


def categorise_operator(name: str) -> str:
    """Return the kind of work of a framework's operator, which stands in for a kernel."""
    return _first_match(_OPERATOR, name) or categorise(name)


def _first_match(table: Sequence[tuple[_T, re.Pattern[str]]], name: str) -> _T | None:
    name = name[:LONGEST_NAME]
    for value, pattern in table:
        if pattern.search(name):
            return value
    return None


def uses_tensor_cores(name: str, category: str) -> bool | None:
    """Return True if the kernel runs on Tensor Cores; null if its name does not tell."""
    if category in MATRIX_WORK:
        return _first_match(_TENSOR_CORE, name)
    if category in {UNCATEGORISED, CUDA_GRAPH}:
        return None
    return False


def copy_category(name: str) -> str:
    """Return the direction of a copy, from a name like `Memcpy HtoD (Pinned -> Device)`."""
    for direction, category in COPY_CATEGORIES.items():
        if direction in name or _ROCM_DIRECTIONS.get(direction, direction) in name:
            return category
    return "copy"
