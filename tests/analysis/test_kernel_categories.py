"""Kernel names of every generation of GPU have the right category."""

from __future__ import annotations

import pytest

from profkit.analysis.kernels.categories import (
    categorise,
    categorise_operator,
    copy_category,
    uses_tensor_cores,
)

CASES = [
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "gemm", True),
    ("volta_h884gemm_256x128_ldg8_nt", "gemm", True),
    (
        "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
        "convolution",
        True,
    ),
    ("volta_sgemm_128x64_nt", "gemm", False),
    ("cudnn_volta_scudnn_128x64_relu_xregs_large_nn_v1", "convolution", False),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "gemm", True),
    ("turing_h1688cudnn_256x128_ldg8_relu_exp_medium_nhwc_tn_v1", "convolution", True),
    ("ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_nn", "gemm", True),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm", True),
    ("ampere_sgemm_32x32_sliced1x4_tn", "gemm", False),
    ("ampere_gcgemm_64x64_nt", "gemm", False),
    (
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(cutla"
            "ss_80_tensorop_s1688gemm::Params)"
        ),
        "gemm",
        True,
    ),
    (
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_sim"
            "t_sgemm_128x32_8x5_nn_align1::Params)"
        ),
        "gemm",
        False,
    ),
    (
        (
            "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_t"
            "ensor16x8x8_execute_kernel__5x_cublas"
        ),
        "gemm",
        True,
    ),
    (
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_"
            "aligna4_alignc4_execute_kernel__5x_cublas"
        ),
        "gemm",
        False,
    ),
    (
        (
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x"
            "16_stage4_warpsize2x2x1_g1_tensor16x8x8"
        ),
        "convolution",
        True,
    ),
    (
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_e"
            "xecute_segment_k_off_kernel__5x_cublas"
        ),
        "gemm",
        True,
    ),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm", True),
    (
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, fal"
            "se, cutlass::bfloat16_t> >(Flash_fwd_params)"
        ),
        "attention",
        True,
    ),
    (
        "void splitKreduce_kernel<float, float, float>(cublasSplitKParams<float>, float const*)",
        "gemm",
        None,
    ),
    (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "communication",
        False,
    ),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "communication",
        False,
    ),
    (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)",
        "normalisation",
        False,
    ),
    (
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(a"
            "nonymous namespace)::TensorListMetadata<3> >"
        ),
        "optimizer",
        False,
    ),
    (
        (
            "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernel"
            "DataType_t)2>"
        ),
        "layout",
        False,
    ),
    (
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"
            ", at::detail::Array<char*, 1> >"
        ),
        "fill",
        False,
    ),
    ("triton_poi_fused_convolution_relu_4", "elementwise", False),
    ("triton_red_fused_native_layer_norm_2", "reduction", False),
    ("a name that nobody knows", "other", None),
]


@pytest.mark.parametrize(
    ("name", "category", "tensor_core"), CASES, ids=[name[:40] for name, _, _ in CASES]
)
def test_a_name_tells_the_work_and_the_cores(
    name: str, category: str, tensor_core: bool | None
) -> None:
    assert categorise(name) == category
    assert uses_tensor_cores(name, category) is tensor_core


def test_a_copy_tells_its_direction() -> None:
    assert copy_category("Memcpy HtoD (Pinned -> Device)") == "copy to device"
    assert copy_category("Memcpy DtoD (Device -> Device)") == "copy on device"
    assert copy_category("Memcpy ??") == "copy"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::conv2d", "convolution"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
        ("Conv2dGradNode", "convolution"),
        ("aten::linear", "gemm"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "gemm"),
        ("MatmulGradNode", "gemm"),
        ("matmul dygraph", "gemm"),
        ("autograd::engine::evaluate_function: NativeBatchNormBackward0", "normalisation"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "elementwise"),
        ("GradNodeAccumulation", "elementwise"),
        ("aten::relu_", "elementwise"),
        ("aten::max_pool2d", "pooling"),
        ("aten::_foreach_add_", "optimizer"),
        ("sgd_ dygraph", "optimizer"),
        ("autograd::engine::evaluate_function: TBackward0", "layout"),
        ("autograd::engine::evaluate_function: NllLossBackward0", "loss"),
        ("aten::stack", "cast or copy"),
        ("c10d::allreduce_", "communication"),
    ],
)
def test_an_operators_kind_is_told_by_its_name(name: str, category: str) -> None:
    assert categorise_operator(name) == category
