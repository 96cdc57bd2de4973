"""Kernel names of every generation of GPU have the right category."""

from __future__ import annotations

import pytest

from profkit.analysis.kernels import categories
from profkit.analysis.kernels.categories import (
    CATEGORIES,
    OPERATORS,
    categorise,
    categorise_operator,
    copy_category,
    uses_tensor_cores,
)

CASES = [
    ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "gemm", True),
    ("volta_h884gemm_256x128_ldg8_nt", "gemm", True),
    ("CUDA graph 7", "CUDA graph", None),
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
    ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1", "gemm", None),
    ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_ISA942", "gemm", None),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x128x1_swiglu", "gemm", None),
    ("bmm_Bfloat16_E2m1Bfloat16_Fp32_bA32_t128x8x512_swiGlu_dynBatch_sm100f", "gemm", None),
    ("fused_moe_kernel", "gemm", None),
    ("void marlin::Marlin<__nv_bfloat16, 256, 4, 16, 4, 4, false>(int4 const*)", "gemm", None),
    ("void fbgemm_gpu::f8f8bf16_rowwise_gemm<64>(Params)", "gemm", None),
    ("void wgrad_gemm_accum_fp32(float*)", "gemm", None),
    ("triton_tem_fused_mm_3", "gemm", None),
    ("attn_fwd.kd", "attention", None),
    ("_attn_bwd_dkdv", "attention", None),
    ("kernel_unified_attention_2d", "attention", None),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<64>(Params)", "attention", None),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)", "cast or copy", False),
    ("_per_token_group_quant_8bit", "cast or copy", False),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise", False),
    ("void vllm::act_and_mul_kernel<c10::BFloat16>(int)", "elementwise", False),
    ("void vllm::moe::topkGatingSoftmax<8, 128>(float const*)", "softmax", False),
    ("void vllm::moe::moe_align_block_size_kernel<int>(int*)", "sort or scan", False),
    ("void flashinfer::norm::RMSNormKernel<8>(bf16*)", "normalisation", False),
    ("void transformer_engine::normalization::ln_fwd_tuned_kernel<X>(P)", "normalisation", False),
    ("void dpsk::ep::internode_ll::dispatch<false, 7168>(void*)", "communication", False),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(X)", "communication", False),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(RankData*)", "communication", False),
    ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1", "convolution", None),
    ("void embedding_dense_backward_kernel<float>(int)", "embedding", False),
    ("void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>(float*)", "loss", False),
    ("void at::native::max_pool_forward_nchw<float>(int)", "pooling", False),
    ("void at::native::indexSelectLargeIndex<float>(X)", "gather or scatter", False),
    (
        "void at::native::index_elementwise_kernel<128, 4, at::native::index_put_kernel_impl>(X)",
        "gather or scatter",
        False,
    ),
    ("void at::native::vectorized_gather_kernel<16, long>(char*)", "gather or scatter", False),
    ("void at::native::sbtopk::gatherTopK<c10::Half, unsigned int>(X)", "sort or scan", False),
    ("vision::ops::(anonymous namespace)::gather_keep_from_mask(bool*)", "sort or scan", False),
    (
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at"
            "::native::CUDAFunctor_add<c10::Half> > >(X)"
        ),
        "elementwise",
        False,
    ),
    (
        (
            "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, "
            "at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >(X)"
        ),
        "elementwise",
        False,
    ),
    (
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at"
            "::native::direct_copy_kernel_cuda> >(X)"
        ),
        "cast or copy",
        False,
    ),
    (
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kern"
            "el_cuda>(X)"
        ),
        "cast or copy",
        False,
    ),
    ("void cudnn::fusion::compute_dot_do_o<true>(void const*)", "attention", None),
    ("void at::native::distribution_elementwise_grid_stride_kernel<float>(X)", "random", False),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(X)",
        "cast or copy",
        False,
    ),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(X)", "reduction", False),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(X)",
        "elementwise",
        False,
    ),
    ("triton_unk_fused_add_2", "elementwise", False),
]


OPERATOR_CASES = [
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
    ("gloo:send", "communication"),
    ("aten::zeros", "fill"),
    ("aten::sum", "reduction"),
    ("aten::add", "elementwise"),
    ("aten::mean", "reduction"),
]


@pytest.mark.parametrize(
    ("name", "category", "tensor_core"), CASES, ids=[name[:40] for name, _, _ in CASES]
)
def test_a_name_tells_the_work_and_the_cores(
    name: str, category: str, tensor_core: bool | None
) -> None:
    assert categorise(name) == category
    assert uses_tensor_cores(name, category) is tensor_core


@pytest.mark.parametrize("word", ["gemm", "GEMM", "matmul", "bmm", "Cijk"])
@pytest.mark.parametrize("after", ["_bias_relu", "_swiglu", "_gelu_elementwise_kernel", "_Bias_"])
def test_a_name_that_says_gemm_is_never_elementwise(word: str, after: str) -> None:
    for name in (f"{word}{after}", f"void lib::{word}{after}<float>(X)", f"my_{word}{after}"):
        assert categorise(name) == "gemm", name


@pytest.mark.parametrize("place", range(len(CATEGORIES)), ids=lambda place: CATEGORIES[place][0])
def test_no_row_can_be_removed_unnoticed(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = tuple(row for at, row in enumerate(categories._CATEGORY) if at != place)
    monkeypatch.setattr(categories, "_CATEGORY", rest)
    uncached = categories._categorise.__wrapped__
    assert any(uncached(name) != category for name, category, _ in CASES)


@pytest.mark.parametrize("place", range(len(OPERATORS)), ids=lambda place: OPERATORS[place][0])
def test_no_operators_row_can_be_removed_unnoticed(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tuple(row for at, row in enumerate(categories._OPERATOR) if at != place)
    monkeypatch.setattr(categories, "_OPERATOR", rest)
    assert any(categorise_operator(name) != category for name, category in OPERATOR_CASES)


def test_a_copy_tells_its_direction() -> None:
    assert copy_category("hipMemcpyAsync CopyHostToDevice") == "copy to device"
    assert copy_category("Memcpy HtoD (Pinned -> Device)") == "copy to device"
    assert copy_category("Memcpy DtoD (Device -> Device)") == "copy on device"
    assert copy_category("Memcpy ??") == "copy"


@pytest.mark.parametrize(("name", "category"), OPERATOR_CASES)
def test_an_operators_kind_is_told_by_its_name(name: str, category: str) -> None:
    assert categorise_operator(name) == category
