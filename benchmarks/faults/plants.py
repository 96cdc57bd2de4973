"""The faults of the first suite, which are injected into `job_torch` and `job_paddle`."""

from __future__ import annotations

from fault import COMPUTE, Fault, late, single

_INPUT_CHANGES: tuple[Fault, ...] = (
    Fault("slow_read", single("input_bound"), {"read_ms": 4.0}, "data", ("read",)),
    Fault("slow_decode", single("input_bound"), {"blurs": 80}, "data", ("decode",)),
    Fault("zero_workers", single("input_bound"), {"workers": 0}, "data", base={"read_ms": 0.6}),
    Fault(
        "slow_read_on_two_ranks",
        single("input_bound"),
        {"read_ms": 4.0},
        "step",
        ("read",),
        base={"workers": 1},
        ranks=2,
    ),
    Fault(
        "workers_restart_each_epoch",
        single(("worker_start", "input_stalls")),
        {"persistent": False},
        "all data",
        base={"epoch_steps": 8, "workers": 3},
    ),
    Fault(
        "too_many_workers",
        single("loader_contention"),
        {"workers": 6},
        base={"polling": 0.15, "placed": False},
    ),
    Fault(
        "cache_cold_epochs",
        single("input_bound"),
        {"cached": False},
        "data",
        ("read",),
        base={"read_ms": 3.0, "cached": True, "epoch_steps": 20, "workers": 0},
    ),
    Fault("truncated_samples", single("bad_samples"), {"broken_ms": 40.0}, "samples"),
)

_RANKS: tuple[Fault, ...] = (
    Fault(
        "late_in_input", single("late_rank"), late("input"), "planted", ("data", "input"), ranks=2
    ),
    Fault(
        "late_in_forward", single("late_rank"), late("forward"), "planted", ("forward",), ranks=2
    ),
    Fault(
        "late_in_backward",
        single("late_rank"),
        late("backward"),
        "planted",
        ("backward",),
        ranks=2,
    ),
    Fault(
        "late_in_forward_of_four",
        single("late_rank"),
        late("forward", rank=2, ms=20.0),
        "planted",
        ("forward",),
        ranks=4,
    ),
    Fault("slow_link", single("exposed_communication"), {"delay_ms": 12.0}, "backward", ranks=2),
    Fault(
        "tiny_buckets",
        single("tiny_buckets"),
        {"bucket_mb": 0.0001},
        "backward",
        base={"tensors": 40, "delay_ms": 0.3},
        ranks=2,
    ),
    Fault(
        "one_huge_bucket",
        single("huge_bucket"),
        {"bucket_mb": 100.0},
        "backward",
        base={"bucket_mb": 0.1, "link_mb_s": 20.0, "batch": 16},
        ranks=2,
    ),
    Fault(
        "accumulation_without_no_sync",
        single(("accumulation_without_no_sync", "unsynced_accumulation")),
        {"no_sync": False},
        "backward",
        base={"accumulate": 4, "delay_ms": 4.0, "batch": 4},
        ranks=2,
    ),
)

_HOST: tuple[Fault, ...] = (
    Fault("tiny_operators", single("launch_bound"), {"slices": 200}, COMPUTE, kernels=True),
    Fault("layout_copies", single("layout_copies"), {"round_trips": 24}, COMPUTE, kernels=True),
    Fault(
        "unfused_optimizer",
        single("optimizer_unfused"),
        {"optimizer": "loop"},
        "optimizer",
        base={"tensors": 150},
        kernels=True,
    ),
    Fault(
        "amp_without_effect",
        single("amp_without_effect"),
        {"autocast": True},
        COMPUTE,
        base={"batch": 2, "width": 8, "workers": 0},
        kernels=True,
    ),
    Fault(
        "thread_oversubscription",
        single("thread_oversubscription"),
        {"threads": 4},
        base={"batch": 16, "placed": False},
    ),
    Fault("garbage_pauses", single("garbage_pauses"), {"garbage_every": 3}, "planted"),
    Fault(
        "checkpoint_every_ten_steps",
        single(("checkpoint_in_training", "evaluation_in_training")),
        {"checkpoint_every": 10},
        "planted",
    ),
    Fault(
        "evaluation_in_training",
        single("evaluation_in_training"),
        {"evaluate_every": 10},
        "planted",
    ),
    Fault("drift", single("drift"), {"drift_ms": 0.1}, "planted"),
    Fault(
        "skipped_steps",
        single("skipped_amp_steps"),
        {"overflow_every": 4},
        None,
        base={"scaler": True},
    ),
)

_PADDLE: tuple[Fault, ...] = (
    Fault(
        "paddle_slow_read",
        single("input_bound"),
        {"read_ms": 4.0},
        "data",
        ("read",),
        framework="paddle",
    ),
    Fault(
        "paddle_slow_decode",
        single("input_bound"),
        {"blurs": 120},
        "data",
        ("decode",),
        framework="paddle",
    ),
    Fault(
        "paddle_tiny_operators",
        single("launch_bound"),
        {"slices": 400},
        COMPUTE,
        framework="paddle",
        kernels=True,
    ),
    Fault(
        "paddle_garbage_pauses",
        single("garbage_pauses"),
        {"garbage_every": 3},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_evaluation",
        single("evaluation_in_training"),
        {"evaluate_every": 10},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_checkpoint",
        single(("checkpoint_in_training", "evaluation_in_training")),
        {"checkpoint_every": 10},
        "planted",
        framework="paddle",
    ),
    Fault(
        "paddle_late_in_forward",
        single("late_rank"),
        late("forward", ms=12.0),
        "planted",
        ("forward",),
        ranks=2,
        framework="paddle",
    ),
    Fault(
        "paddle_late_in_input",
        single("late_rank"),
        late("input", ms=60.0),
        "step",
        ("data", "input"),
        ranks=2,
        framework="paddle",
    ),
)

_TOGETHER: tuple[Fault, ...] = (
    Fault(
        "slow_read_and_garbage",
        (("input_bound",), ("garbage_pauses",)),
        {"read_ms": 4.0, "garbage_every": 3},
    ),
    Fault(
        "late_forward_and_checkpoint",
        (("late_rank",), ("checkpoint_in_training", "evaluation_in_training")),
        {**late("forward"), "checkpoint_every": 10},
        ranks=2,
    ),
    Fault(
        "slow_link_and_slow_decode",
        (("exposed_communication",), ("input_bound",)),
        {"delay_ms": 12.0, "blurs": 10},
        ranks=2,
    ),
    Fault(
        "evaluation_and_unfused_optimizer",
        (("evaluation_in_training",), ("optimizer_unfused",)),
        {"evaluate_every": 10, "optimizer": "loop"},
        base={"tensors": 150},
        kernels=True,
    ),
)

_GPU: tuple[Fault, ...] = (
    Fault("item_syncs", single("sync_stalls"), {"item_syncs": 8}, kernels=True, needs_gpu=True),
    Fault(
        "pageable_copies",
        single("unpinned_copy"),
        {"pin": False},
        base={"image": 224, "batch": 64},
        kernels=True,
        needs_gpu=True,
    ),
    Fault(
        "gpu_layout_copies",
        single("layout_copies"),
        {"round_trips": 8},
        base={"image": 128, "batch": 64},
        kernels=True,
        needs_gpu=True,
    ),
    Fault(
        "clock_throttling",
        single(("drift", "throttling")),
        {},
        needs_gpu=True,
        needs_administrator="lower the clocks of the second run: nvidia-smi --lock-gpu-clocks",
    ),
)

PLANTED: tuple[Fault, ...] = (*_INPUT_CHANGES, *_RANKS, *_HOST, *_PADDLE, *_TOGETHER, *_GPU)
