"""Measure what each question of the NVML collector costs on this machine's first device.

python benchmarks/gpu_jobs/nvml_questions.py
"""

from __future__ import annotations

import time

from profkit.collectors._nvml_door import Door
from profkit.collectors.nvml import QUESTIONS

TIMES = 15


def main() -> None:
    door = Door()
    gpu = door.gpus()[0]
    print("question      wall ms   processor ms, means of", TIMES)
    for name, question in QUESTIONS.items():
        list(question(door, gpu))
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(TIMES):
            list(question(door, gpu))
        wall_ms = (time.perf_counter_ns() - wall_ns) / 1e6 / TIMES
        cpu_ms = (time.thread_time_ns() - cpu_ns) / 1e6 / TIMES
        print(f"{name:12s} {wall_ms:8.3f} {cpu_ms:8.3f}")


if __name__ == "__main__":
    main()
