"""What people call the causes; programs and options call them by their kind."""

from __future__ import annotations

TITLES = {
    "input_bound": "waiting for data",
    "input_stalls": "stalls of the data loader",
    "worker_start": "workers that start in each epoch",
    "overlapped_reader": "a slower data loader, hidden by the steps",
    "loader_contention": "loader workers that take the cores",
    "thread_oversubscription": "more threads than cores",
    "interpreter_lock": "Python threads that hold the interpreter",
    "no_core": "waiting for a core",
    "host_busy": "other processes on the cores",
    "unpinned_copy": "copies from pageable memory",
    "late_rank": "a late rank",
    "exposed_communication": "waiting for the gradient exchange",
    "tiny_buckets": "many small gradient buckets",
    "huge_bucket": "few large gradient buckets",
    "tiny_collectives": "many small collectives",
    "regathered_weights": "weights gathered again in backward",
    "no_prefetch": "gathers that no computing hides",
    "slow_module": "a slower module",
    "slow_link": "a slow link",
    "uneven_stages": "uneven pipeline stages",
    "long_last_stage": "a long last pipeline stage",
    "uneven_lengths": "batches of uneven lengths",
    "accumulation_without_no_sync": "gradients exchanged several times per step",
    "launch_bound": "launches of many short kernels",
    "layout_copies": "casts and layout copies",
    "sync_stalls": "copies to the host within the step",
    "amp_without_effect": "mixed precision without effect",
    "optimizer_unfused": "an optimizer that is not fused",
    "pipeline_schedule": "the work of the pipeline's schedule",
    "evaluation_in_training": "evaluation",
    "checkpoint_in_training": "checkpoints",
    "time_outside_phases": "time outside all phases",
    "garbage_pauses": "pauses of the garbage collector",
    "recompiles": "repeated compilation",
    "compile_on_one_rank": "compilation on some ranks",
    "graph_breaks": "graph breaks",
    "drift": "steps that become longer",
    "skipped_amp_steps": "steps skipped for infinite gradients",
    "bad_samples": "samples that cannot be read",
    "published_mismatch": "a speed that differs from the published ones",
    "undivided_gap": "a difference that logs do not divide",
    "more_calls": "more calls per step",
    "slow_line": "a slower line of code",
    "more_work": "more work per sample",
    "more_collectives": "more collectives",
    "few_cores": "fewer cores",
    "setting_changed": "a changed setting",
}
"""The title of each kind of cause, for a sentence such as `without TITLE`."""


def title_of(kind: str) -> str:
    """Return what people call a cause; one of a plug-in is called by its kind."""
    return TITLES.get(kind, kind)


def full_title(kind: str, *notes: str) -> str:
    """Return the title of a cause, and in brackets the kind that options take, and notes."""
    if kind not in TITLES:
        return f"{kind} ({', '.join(notes)})" if notes else kind
    return f"{TITLES[kind]} ({', '.join([kind, *notes])})"
