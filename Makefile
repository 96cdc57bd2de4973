# Everything runs in the environment that uv makes from pyproject.toml.
RUN := uv run --group test

.PHONY: check test gpu bench docs

check:  ## lint, format, types, import contracts
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports

test:  ## all tests
	$(RUN) pytest

gpu:  ## on a machine with a CUDA device: device times against CUPTI, no synchronisation, overhead
	python -m pytest tests/gpu -ra
	python benchmarks/overhead.py --device cuda

bench:  ## all benchmarks, each beside its peer; every one is run, and the first failure is the exit code
	@failed=0; for script in startup open_trace overhead loader kill truncate; do \
		echo "== $$script"; $(RUN) python benchmarks/$$script.py || failed=1; done; exit $$failed

docs:  ## what is generated from the code
	$(RUN) profkit schema --markdown > docs/schema.md
