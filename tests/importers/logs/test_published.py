"""Published logs have a grammar, the throughput that they state, and known figures."""

from __future__ import annotations

import csv
import functools
import statistics
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.importers.base import Target
from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import Mean, ParsedLog, Scope
from profkit.importers.training_log import IMPORTER
from profkit.report.ledger_document import explained
from profkit.show import text
from profkit.trace import Trace
from tests.importers.logs.samples import mean_data_s

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
LOGS = DATA / "logs"
CASES = DATA / "log_cases.csv"

FILES = sorted(path for path in LOGS.rglob("*") if path.is_file()) if LOGS.is_dir() else []
needs_logs = pytest.mark.skipif(
    not FILES, reason="the published logs (../shared/data/logs) are not here"
)

GRAMMAR_OF = {
    "gluoncv_yolov3": "gluoncv",
    "mit_tsm_pytorch": "mit_tsm",
    "mmseg_deeplabv3p": "mmcv",
    "mmseg_hrnet": "mmcv",
    "ngc_fairseq_transformer": "fairseq",
    "ngc_mxnet_rn50": "dllogger_mxnet",
    "ngc_pytorch_bert_dllogger": "dllogger_bert",
    "ngc_pytorch_maskrcnn": "dllogger_maskrcnn",
    "ngc_pytorch_rn50_airank": "dllogger_pytorch",
    "ngc_pytorch_rn50_dllogger": "dllogger_pytorch",
    "ngc_tf_bert": "tf_bert",
    "ngc_tf_maskrcnn": "tf_maskrcnn",
    "ngc_tf_rn50_dllogger": "dllogger_tensorflow",
    "paddleclas_rn50": "paddleclas",
    "paddlenlp_bert": "paddlenlp_bert",
    "paddlenlp_transformer": "paddlenlp_transformer",
    "paddleseg_deeplabv3p": "paddleseg",
    "paddleseg_hrnet": "paddleseg",
    "paddlevideo_tsm": "paddlevideo",
}


@functools.cache
def parse(path: Path) -> list[ParsedLog]:
    data = path.read_bytes()
    return parse_log(lambda: [data], path.name)


def shown(path: Path) -> str:
    return str(path.relative_to(LOGS))


@needs_logs
@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_published_log_has_a_named_grammar_and_steps(path: Path) -> None:
    logs = parse(path)
    folder = path.relative_to(LOGS).parts[0]
    assert {log.grammar for log in logs} == {GRAMMAR_OF.get(folder, logs[0].grammar)}
    assert all(log.mean_step_s for log in logs)
    assert IMPORTER.recognises(path.read_bytes()[:65_536], path) == 0.8


@needs_logs
@pytest.mark.parametrize("path", FILES, ids=shown)
def test_the_throughput_is_what_the_log_states(path: Path) -> None:
    """Compare line by line, or at the last line of each cumulative mean."""
    for log in parse(path):
        cumulative = log.times in {Mean.EPOCH, Mean.RUN}
        told = [each for each in log.records if each.throughput and each.step_s and each.samples]
        if log.grammar == "tf_maskrcnn" or not told:
            continue
        if cumulative:
            made, stated = log.mean_throughput, statistics.fmean(_last_of_each_epoch(log))
            assert made == pytest.approx(stated, rel=0.01)
        else:
            ratios = [
                (each.samples or 0) / (each.step_s or 1) / (each.throughput or 1) for each in told
            ]
            assert statistics.median(ratios) == pytest.approx(1, rel=0.005)
            assert sum(abs(ratio - 1) > 0.01 for ratio in ratios) <= 0.02 * len(ratios) + 1


def _last_of_each_epoch(log: ParsedLog) -> list[float]:
    last = {each.epoch: each.throughput or 0.0 for each in log.records if each.throughput}
    return list(last.values())


@needs_logs
@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_stated_mean_is_found_again(path: Path) -> None:
    """Compare by the tool's own definition, or with the steady steps unless it is flagged."""
    for log in parse(path):
        stated = next((each for each in log.stated if each.what == "throughput"), None)
        mean = log.mean_throughput
        if stated is None or mean is None:
            continue
        flagged = any("its steady steps give" in flag.text for flag in log.flags)
        assert flagged or mean == pytest.approx(stated.value, rel=0.05)
        if (
            stated.how.startswith("arithmetic mean")
            and len({each.epoch for each in log.records}) == 1
            and log.records[1].step - log.records[0].step == 1
        ):
            assert statistics.fmean(each.throughput or 0 for each in log.records) == pytest.approx(
                stated.value, rel=0.005
            )


@needs_logs
def test_reports_of_imported_logs_show_the_logs_throughput(tmp_path: Path) -> None:
    for path in _one_of_each():
        runs = list(IMPORTER.read([path], Target(tmp_path / "traces")))
        for made, log in zip(runs, parse(path), strict=True):
            view = build_overview(Trace.open(made.run))
            assert view.flags == made.flags
            assert len(made.flags) >= len(log.flags)
            if log.mean_throughput:
                ranks = view.world_size if log.scope is Scope.CARD else 1
                throughput = pytest.approx(log.mean_throughput * ranks, rel=0.02)
                assert view.throughput.value == throughput, path
            assert view.step_ns.value / 1e9 == pytest.approx(log.mean_step_s, rel=0.02), path


def _one_of_each() -> list[Path]:
    """The shortest file of each folder, and the ones with several runs."""
    first: dict[str, Path] = {}
    for path in sorted(FILES, key=lambda path: path.stat().st_size):
        first.setdefault(path.relative_to(LOGS).parts[0], path)
    return [*first.values(), *(path for path in FILES if len(parse(path)) > 1)]


def _cases() -> list[dict[str, str]]:
    if not CASES.is_file():
        return []
    with CASES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(
    not CASES.is_file(), reason="the known cases (../shared/data/log_cases.csv) are not here"
)
@pytest.mark.parametrize("case", _cases(), ids=lambda case: case["case"])
def test_a_known_case_has_its_numbers(case: dict[str, str]) -> None:
    base, target = LOGS / case["baseline_log"], LOGS / case["target_log"]
    if not base.is_file() or not target.is_file():
        pytest.skip("its logs are not published: only figures are")
    before, after = parse(base)[-1], parse(target)[-1]
    assert before.mean_step_s == pytest.approx(float(case["step_base_s"]), abs=6e-6)
    assert after.mean_step_s == pytest.approx(float(case["step_target_s"]), abs=1.1e-5)
    if case["data_base_s"]:
        assert mean_data_s(before) == pytest.approx(float(case["data_base_s"]), abs=1.1e-5)
        assert mean_data_s(after) == pytest.approx(
            float(case["data_target_s"]), abs=1.1e-5 + 5e-5 * (len(case["data_target_s"]) < 7)
        )
        assert (mean_data_s(after) or 0) - (mean_data_s(before) or 0) == pytest.approx(
            float(case["data_delta_s"]), abs=6e-5
        )
    assert (after.mean_step_s or 0) - (before.mean_step_s or 0) == pytest.approx(
        float(case["loss_s"]), abs=2e-5
    )
    assert (before.mean_step_s or 0) / (after.mean_step_s or 1) == pytest.approx(
        float(case["efficiency"]), abs=1e-4 + 1e-3 * (len(case["efficiency"]) < 6)
    )


@needs_logs
def test_the_published_gain_of_mixed_precision_is_answered_as_far_as_logs_allow(
    tmp_path: Path,
) -> None:
    """Mask R-CNN on one GPU, batch 2: 9.2 images/s in fp32 and 10.4 with AMP."""
    runs = []
    for precision in ("fp32", "amp"):
        (log,) = LOGS.glob(f"ngc_pytorch_maskrcnn/*/pytorch_gpu1_{precision}_bs2.txt")
        (made,) = IMPORTER.read([log], Target(tmp_path / precision))
        runs.append(Trace.open(made.run))
    words = " ".join(text.document(explained(explain(runs[0], runs[1]))).split())
    assert "base 9.208 images/s" in words
    assert "target 10.42 images/s" in words
    assert "24.3 ms per step less in rest" in words
    assert "settings that differ and can affect it: precision fp32 -> amp" in words
    assert "Without kernels of both runs it is not known how much" in words
