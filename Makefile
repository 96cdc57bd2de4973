# Everything runs in the environment that uv makes from pyproject.toml.
RUN := uv run --group test

SHOT := $(RUN) profkit tui --size 96x28 --screenshot docs/screens
ALONE := traces/recorded-resnet50-workers-0
PAGEABLE := traces/recorded-h200-images-pageable

TORCHES := 2.4.1 2.10.0 2.15.0
PADDLES := 2.6.2 3.0.0

.PHONY: screenshots check test nightly contracts wheels systems converge gpu bench trust accuracy hangs midrun programs slow-lines sharded recorded docs

check:  ## lint, format, limits of length and density, types, import contracts
	$(RUN) ruff check .
	$(RUN) python tests/house/measures.py
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports

test:  ## the tests that everybody runs
	$(RUN) pytest

nightly:  ## all other tests, and the page of what they showed: real jobs, and what is long or exhaustive; hours
	-for version in $(PADDLES); do .ci/contracts paddlepaddle $$version; done
	-$(RUN) pytest -m "(jobs or nightly) and not alone" --junitxml build/nightly.xml
	-$(RUN) pytest -n 0 -m "alone and (jobs or nightly)" --junitxml build/nightly-alone.xml
	$(RUN) python benchmarks/nightly.py build/nightly.xml build/nightly-alone.xml

contracts:  ## the hooks with the oldest supported torch, the V100's and the newest, older Paddles, and with Megatron and DeepSpeed; minutes for each
	for version in $(TORCHES); do .ci/contracts torch $$version || exit 1; done
	for version in $(PADDLES); do .ci/contracts paddlepaddle $$version || exit 1; done
	.ci/libraries

wheels:  ## the wheel for each Python of this machine, used in an environment without a compiler; a minute and a half
	.ci/wheels

systems:  ## every reference system in every framework, alone and on two ranks, fp32 and mixed precision
	PROFKIT_ALL_SYSTEMS=1 $(RUN) pytest tests/workloads/test_systems.py

converge:  ## whether every reference system learns; about an hour on two cores
	$(RUN) python benchmarks/converge.py

gpu:  ## on a machine with a CUDA device: device times and kernels against CUPTI, no synchronisation, overhead, planted faults, traces
	.ci/gpu

bench:  ## cost of recording, and speed of reading, next to peers, into docs/results; an hour on a quiet machine
	$(RUN) python benchmarks/overhead.py --turns 20 --processes 4 --keep-heap --write
	$(RUN) python benchmarks/collectors.py --write
	$(RUN) python benchmarks/reading.py --write
	$(RUN) python benchmarks/tui.py --write
	$(RUN) python benchmarks/import.py --write

trust:  ## kills, cuts, flips, an hour of recording, mutants of the source; hours
	$(RUN) python benchmarks/kill.py
	$(RUN) python benchmarks/interrupt.py
	$(RUN) python benchmarks/truncate.py
	$(RUN) python benchmarks/mutate_runs.py
	$(RUN) python benchmarks/mutate_traces.py
	$(RUN) python benchmarks/mutate_logs.py --count 2100
	$(RUN) python benchmarks/soak.py --minutes 60
	$(RUN) python benchmarks/mutants.py --write

accuracy:  ## faults of known cost planted in real jobs, and how often their cause is named; an hour on two cores
	$(RUN) python benchmarks/faults run
	$(RUN) python benchmarks/faults score --write
	$(RUN) python benchmarks/healthy.py run
	$(RUN) python benchmarks/healthy.py score --write

hangs:  ## planted hangs, and how often rank, class and line are named; an hour on two cores
	$(RUN) python benchmarks/hangs/hangs.py run
	$(RUN) python benchmarks/hangs/hangs.py score --write

midrun:  ## changes planted in the middle of runs; 15 minutes
	$(RUN) python benchmarks/midrun.py run --work build/midrun
	$(RUN) python benchmarks/midrun.py score --work build/midrun --write

programs:  ## real programs of many packages, bare and recorded, against an independent probe; half an hour on two cores
	$(RUN) python benchmarks/programs/table.py run
	$(RUN) python benchmarks/programs/table.py show --write

sharded:  ## faults planted in sharded jobs, and how often their cause is named; on a quiet machine, an hour
	$(RUN) python benchmarks/sharded_faults.py run --work build/sharded-faults
	$(RUN) python benchmarks/sharded_faults.py score --work build/sharded-faults --write

slow-lines:  ## slow lines planted in a job, and how often sampled stacks name them; ten minutes
	$(RUN) python benchmarks/slow_lines.py run --work build/slow-lines
	$(RUN) python benchmarks/slow_lines.py score --work build/slow-lines --write

recorded:  ## the runs of traces/, on a quiet machine; a few minutes
	$(RUN) python benchmarks/recorded.py

docs:  ## what is generated from the code
	$(RUN) profkit schema --markdown > docs/schema.md

screenshots:  ## the pictures of docs/tui.md, from the recorded runs
	$(SHOT)/overview.svg --screen overview $(PAGEABLE)
	$(SHOT)/timeline.svg --screen timeline $(ALONE)
	$(SHOT)/explain.svg --screen explain --base traces/recorded-h200-images $(PAGEABLE)
	$(SHOT)/scaling.svg --size 120x46 --screen explain --base $(ALONE) --base traces/recorded-resnet50-workers-2 traces/recorded-resnet50-2-ranks
