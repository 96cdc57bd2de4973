"""Which tests run when: by default, before a change lands, or each night.

A module or a test that is not named here runs by default. The tables name what starts jobs, and
what repeats many times over what the default tests try once.
"""

from __future__ import annotations

from pathlib import PurePosixPath

TIERS = {
    "jobs": "starts real jobs; .ci/run runs it after the default tests",
    "nightly": "long or exhaustive; runs only if -m names it (make nightly)",
}
"""What runs only if -m names it, or the command line names its file or folder."""

NIGHTLY = (
    "analysis/test_change_levels.py::test_a_small_change_hides_no_burst_soon_after_it",
    "analysis/test_change_levels.py::test_an_early_change_is_found_by_the_steps_after_it",
    "analysis/test_change_levels.py::test_a_job_that_goes_to_and_fro_between_two_levels_has_no_drift",
    "analysis/test_change_points.py::test_a_drift_is_reported_from_its_beginning_on",
    "analysis/test_change_points.py::test_a_short_burst_ends_too",
    "analysis/test_change_points.py::test_what_stays_after_a_burst_is_a_change_of_its_own",
    "analysis/test_estimate.py::test_an_interval_holds_the_true_mean_as_often_as_it_says",
    "analysis/test_gap_weights.py::test_the_interval_holds_the_truth_as_often_as_it_says",
    "analysis/test_kernels_view.py::test_many_distinct_names_take_memory_in_proportion",
    "analysis/test_ledger.py::test_intervals_hold_the_truth",
    "analysis/test_run_noise.py::test_repeats_of_one_job_are_rarely_called_a_change",
    "analysis/test_run_noise.py::test_rounds_of_one_job_are_rarely_called_a_change",
    "analysis/test_run_noise.py::test_three_rounds_find_ten_percent",
    "analysis/test_run_noise.py::test_no_interval_of_repeats_leaves_what_is_possible",
    "analysis/test_run_series.py::test_disturbed_runs_hide_few_changes",
    "analysis/test_run_series.py::test_false_alarms_of_worse_noise",
    "analysis/test_run_series.py::test_runs_of_two_kinds_are_no_change",
    "analysis/test_run_series.py::test_the_power_and_the_false_alarms_of_normal_noise",
    "analysis/test_run_series.py::test_the_power_for_a_change_that_was_undone",
    "callbacks/test_other_launches.py",
    "callbacks/test_paddle_suite.py",
    "cli/test_bench_trained.py",
    "collectors/test_glance.py::test_code_that_comes_and_goes_does_no_harm",
    "collectors/test_glance.py::test_threads_that_look_while_python_ends_do_no_harm",
    "collectors/test_worker_stacks.py::test_a_job_killed_at_any_moment_leaves_stacks_that_can_be_read",
    "collectors/test_worker_stacks.py::test_the_slow_line_of_paddles_workers_is_named",
    "device/test_drawn.py",
    "device/test_mutations.py",
    "device/test_scenarios.py",
    "hangs/test_held_busy.py",
    "hangs/test_jobs.py",
    "harmless/test_import_orders.py",
    "house/test_python_versions.py",
    "importers/logs/test_mutants.py",
    "importers/test_mutations.py",
    "trust/test_soak.py",
)
JOBS = (
    "cli/test_scheduler.py::test_a_scheduler_that_is_not_there_is_said",
    "cli/test_scheduler.py::test_dask_gives_the_same_bytes",
    "metrics/test_trackers.py::test_wandb",
    "test_facts.py::test_a_job_is_recorded_with_its_code_and_each_ranks_own_variables",
    "workloads/test_documented_commands.py",
    "callbacks/test_trainers.py",
    "cli/test_bad_input.py::test_an_output_folder_that_cannot_be_made",
    "cli/test_bench.py::test_a_matrix_that_is_really_trained",
    "cli/test_doctor.py",
    "cli/test_repeats.py",
    "cli/test_trace_faults.py",
    "cli/test_trace_nodes.py",
    "cli/test_trace_verb.py",
    "collectors/test_glance.py",
    "collectors/test_in_a_run.py",
    "collectors/test_stacks.py",
    "collectors/test_worker_stacks.py",
    "device/test_simulator.py",
    "device/test_streams.py",
    "gpu/test_collectors.py",
    "gpu/test_cuda_graphs.py",
    "gpu/test_device_time.py",
    "gpu/test_exchange.py",
    "hangs/test_alarm.py",
    "hangs/test_calls.py",
    "hangs/test_crashes.py",
    "hangs/test_held.py",
    "hangs/test_lookout.py",
    "hangs/test_trace.py",
    "harmless/test_ddp.py",
    "harmless/test_functions_compared.py",
    "harmless/test_hints.py",
    "harmless/test_imports.py",
    "harmless/test_paddle.py",
    "harmless/test_ray.py",
    "house/test_packaging.py",
    "house/test_same_python.py",
    "instrument/test_captured_kernels.py",
    "instrument/test_compilations.py",
    "instrument/test_compiled_calls.py",
    "instrument/test_fleet.py",
    "instrument/test_frameworks.py",
    "instrument/test_identity.py",
    "instrument/test_libraries.py",
    "instrument/test_loader_workers.py",
    "instrument/test_paddle_collectives.py",
    "instrument/test_planted_sleeps.py",
    "instrument/test_programs.py",
    "instrument/test_run_command.py",
    "instrument/test_sharded.py",
    "instrument/test_static_program.py",
    "metrics/test_run_export.py",
    "test_warm.py",
    "trace/test_survival.py",
    "trust/test_audit.py",
    "trust/test_determinism.py",
    "trust/test_forks.py",
    "trust/test_hanging_rank.py",
    "trust/test_killed_loop.py",
    "trust/test_secrets.py",
    "tui/test_terminal.py",
    "workloads/test_checkpoints.py",
    "workloads/test_evaluation.py",
    "workloads/test_hrnet_w18.py",
    "workloads/test_loader_errors.py",
    "workloads/test_mask_rcnn.py",
    "workloads/test_paddle_settings.py",
    "workloads/test_psenet.py",
    "workloads/test_shared_loop.py",
    "workloads/test_systems.py",
    "workloads/test_tsm.py",
)
_TIER_OF = {**dict.fromkeys(JOBS, "jobs"), **dict.fromkeys(NIGHTLY, "nightly")}


def tier_of_module(path: PurePosixPath) -> str | None:
    """Return the tier of a module of tests, by its path below `tests`."""
    return _TIER_OF.get(path.as_posix())


def tier_of_test(path: PurePosixPath, name: str) -> str | None:
    """Return the tier of one test, by the name of its function."""
    return _TIER_OF.get(f"{path.as_posix()}::{name}", tier_of_module(path))
