"""Exported metrics, read back by other programs' parsers."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from profkit import cli
from profkit.analysis.views.live import build_live_view
from profkit.errors import ProfkitError, UsageError
from profkit.metrics import follow
from profkit.metrics.base import open_export
from profkit.metrics.follow import Follower
from profkit.metrics.points import METRICS, RUN_LABELS, Snapshot, of_live
from profkit.testing import synthetic_trace
from profkit.trace.tail import RunTail
from profkit.vocab import RunState
from tests.hangs.test_alarm import wait_until
from tests.hostile import hostile_run
from tests.house.test_packaging import TOP

NOW_NS = 1_700_000_100_000_000_000

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(tmp_path_factory.mktemp("runs") / "two", ranks=2, steps=60)


def live(run: Path, state: RunState = RunState.RUNNING) -> Snapshot:
    latest = RunTail(run).look()
    view = build_live_view(run.name, latest, NOW_NS)
    return of_live(dataclasses.replace(view, state=state), 2, NOW_NS / 1e9)


def read_back(path: Path) -> Samples:
    """Parse a textfile with Prometheus' own parser."""
    parser = pytest.importorskip("prometheus_client.parser", reason="extra 'prometheus' is missing")
    found = {}
    for family in parser.text_string_to_metric_families(path.read_text(encoding="utf-8")):
        assert family.type == "gauge"
        assert family.documentation == METRICS[family.name].help
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def by_another_parser(text: str) -> Samples:
    """Parse the text format as its specification says, without the client's code."""
    line_of = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)")
    label_of = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)",?')
    plain = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
    found = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        name, labels, value = line_of.fullmatch(line).groups()  # type: ignore[union-attr]
        assert label_of.sub("", labels) == ""
        own = {}
        for key, escaped in label_of.findall(labels):
            own[key] = re.sub(r'\\[n"\\]', lambda found: plain[found[0]], escaped)
        found[name, frozenset(own.items())] = float(value)
    return found


def as_samples(snapshot: Snapshot) -> Samples:
    return {
        (point.metric.name, frozenset(point.labels.items())): point.value
        for point in snapshot.points
    }


def test_a_textfile_holds_the_live_figures(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    path = tmp_path / "train.prom"
    snapshot = live(run)
    open_export(str(path)).send(snapshot)
    found = read_back(path)
    assert found == as_samples(snapshot) == by_another_parser(path.read_text())
    names = {name for name, _ in found}
    assert names == {metric.name for metric in METRICS.values() if metric.live}
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


@pytest.mark.parametrize("state", [RunState.COMPLETE, RunState.ABORTED])
def test_a_job_that_has_ended_neither_stalls_nor_has_ranks_at_a_step(
    run: Path, state: RunState
) -> None:
    running, ended = ({name for name, _ in as_samples(live(run, each))} for each in
                      (RunState.RUNNING, state))  # fmt: skip
    assert running - ended == {"profkit_stalled", "profkit_rank_step"}


def test_an_export_has_the_figures_of_the_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    path = tmp_path / "run.prom"
    command = ["export", str(run), "--format", "prometheus", "-w", str(path)]
    assert cli.main(command) == 0
    first = path.read_text()
    assert cli.main(command) == 0, "the collector reads the same name again"
    assert path.read_text() == first
    capsys.readouterr()
    assert cli.main(["report", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {}
    for (name, labels), value in read_back(path).items():
        found[name, dict(labels).get("phase")] = value
    assert found["profkit_step_seconds", None] == pytest.approx(
        report["step_ms"]["value"] / 1e3, rel=1e-12
    )
    assert found["profkit_step_low_seconds", None] == pytest.approx(
        report["step_ms"]["low"] / 1e3, rel=1e-12
    )
    speed = report["throughput_samples_per_s"]
    assert found["profkit_throughput_samples_per_second", None] == speed["value"]
    assert found["profkit_steps_used", None] == report["steps_used"]
    for part in report["phases"]:
        assert found["profkit_phase_ratio", part["phase"]] == part["share"]["value"]


def test_hostile_names_stay_label_values(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    run = hostile_run(tmp_path / "hostile")
    path = tmp_path / "hostile.prom"
    snapshot = live(run)
    open_export(str(path)).send(snapshot)
    assert read_back(path) == as_samples(snapshot) == by_another_parser(path.read_text())


def test_a_name_that_is_no_text_is_exported_escaped(tmp_path: Path) -> None:
    """Python decodes the bytes of a script's name that are no UTF-8 to halves of pairs."""
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    run = synthetic_trace(tmp_path / "tr\udce4in", steps=30, workload="tr\udce4in")
    path = tmp_path / "train.prom"
    open_export(str(path)).send(live(run))
    target = tmp_path / "whole.prom"
    assert cli.main(["export", str(run), "--format", "prometheus", "-w", str(target)]) == 0
    for found in (read_back(path), read_back(target)):
        names = {value for _, labels in found for label, value in labels if label in RUN_LABELS}
        assert names == {"tr\\udce4in"}


def test_what_is_not_known_is_missing(run: Path) -> None:
    view = build_live_view(run.name, RunTail(run).look(), NOW_NS)
    names = {point.metric.name for point in of_live(view, 16, 1.0).points}
    assert "profkit_throughput_samples_per_second" not in names, "2 of 16 ranks are followed"
    assert "profkit_step_seconds" in names


def test_a_place_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"metrics.txt: neither a file that ends in .prom"):
        open_export("metrics.txt")
    with pytest.raises(UsageError, match=r"http://: not an address such as"):
        open_export("http://")
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    with pytest.raises(ProfkitError, match="No such file or directory; name a file in a folder"):
        open_export(str(tmp_path / "none" / "a.prom")).send(Snapshot((), None))


class _Collector(BaseHTTPRequestHandler):
    """An OTLP receiver: keeps the bodies of its requests."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        bodies: list[Any] = self.server.bodies  # type: ignore[attr-defined]
        bodies.append((self.path, self.headers["Content-Encoding"], body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Collector)
    server.bodies = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_otlp_is_read_back_by_its_own_messages(run: Path, receiver: Any) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    snapshot = live(run)
    sink = open_export(f"http://127.0.0.1:{receiver.server_port}")
    sink.send(snapshot)
    count = len(receiver.bodies)
    sink.close(RunState.COMPLETE, None)
    path, encoding, body = receiver.bodies[count - 1]
    assert (path, encoding) == ("/v1/metrics", None)
    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    found = {}
    for scope in request.resource_metrics[0].scope_metrics:
        for metric in scope.metrics:
            assert metric.unit == METRICS[metric.name].unit
            for point in metric.gauge.data_points:
                labels = {each.key: each.value.string_value for each in point.attributes}
                value = point.as_double if point.HasField("as_double") else point.as_int
                found[metric.name, frozenset(labels.items())] = value
    assert found == as_samples(snapshot)


def test_a_receiver_that_is_gone_is_said_once_and_the_job_goes_on(run: Path, receiver: Any) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )
    said: list[str] = []
    receiver.server_close()
    sink = open_export(f"http://127.0.0.1:{receiver.server_port}")
    follower = Follower(run, [sink], said.append, every_s=0.01)
    follower.start()
    follower.stop()
    assert len(said) == 1
    assert "no OTLP receiver took the metrics" in said[0]


@pytest.mark.parametrize(
    ("status", "said"), [(401, "401"), (404, "404"), (503, "Service Unavailable")]
)
def test_the_refusal_of_a_receiver_is_said(
    run: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    """`check the address` was all that was said of a receiver that wants a key."""
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )

    def refuse(self: _Collector) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(status)

    monkeypatch.setattr(_Collector, "do_POST", refuse)
    sink = open_export(f"http://127.0.0.1:{receiver.server_port}")
    with pytest.raises(ProfkitError, match=said) as raised:
        sink.send(live(run))
    assert "retrying" not in str(raised.value)
    sink.close(RunState.COMPLETE, None)


def test_a_receiver_that_was_busy_gets_the_next_figures(
    run: Path, receiver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )
    take = _Collector.do_POST

    def be_busy(self: _Collector) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(503)

    monkeypatch.setattr(_Collector, "do_POST", be_busy)
    sink = open_export(f"http://127.0.0.1:{receiver.server_port}")
    with pytest.raises(ProfkitError, match="Service Unavailable"):
        sink.send(live(run))
    monkeypatch.setattr(_Collector, "do_POST", take)
    sink.send(live(run))
    assert len(receiver.bodies) == 1
    sink.close(RunState.COMPLETE, None)


def test_no_line_shows_the_password_of_an_address(
    run: Path, receiver: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )
    receiver.server_close()
    sink = open_export(f"http://me:pass@word@127.0.0.1:{receiver.server_port}")
    said: list[str] = []
    with follow.following(run, [sink], said.append):
        pass
    assert any("no OTLP receiver took the metrics" in line for line in said)
    assert cli.main(["run", "--export-to", "ftp://me:pass@word@host/x", "--", "true"]) == 2
    said.append(capsys.readouterr().err)
    for line in said:
        assert "pass" not in line
        assert "://" in line


def test_an_opentelemetry_that_is_switched_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, and the address was blamed."""
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.metric_exporter", reason="extra 'otlp' is missing"
    )
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(UsageError, match="OTEL_SDK_DISABLED is set"):
        open_export("http://127.0.0.1:4318")


def test_one_sink_that_fails_does_not_keep_others_from_figures(run: Path) -> None:
    got: list[Snapshot] = []
    said: list[str] = []

    class Broken:
        def send(self, snapshot: Snapshot) -> None:
            raise ValueError("no")

        def close(self, state: RunState, report: Snapshot | None) -> None:
            raise OSError("neither")

    class Sound:
        def send(self, snapshot: Snapshot) -> None:
            got.append(snapshot)

        def close(self, state: RunState, report: Snapshot | None) -> None:
            got.append(Snapshot((), -1))

    follower = Follower(run, [Broken(), Sound()], said.append, every_s=60)
    follower.start()
    follower.stop()
    assert got[0].step == 59
    assert got[-1].step == -1
    assert said == [
        "metrics: ValueError: no; the last figures may be missing there",
        "metrics: OSError: neither; the last figures may be missing there",
    ], "the job has ended"


def test_a_sink_that_does_not_answer_keeps_no_other_from_figures(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread called all sinks: a server of MLflow that never answers stopped the textfile."""
    monkeypatch.setattr(follow, "LONGEST_END_S", 1.0)
    monkeypatch.setattr(follow, "WITHOUT_ANSWER_S", 0.0)
    got: list[Snapshot] = []
    said: list[str] = []
    answers = threading.Event()

    class Stuck:
        def send(self, snapshot: Snapshot) -> None:
            answers.wait()

        def close(self, state: RunState, report: Snapshot | None) -> None:
            raise AssertionError("its figures were never taken")

    class Sound:
        def send(self, snapshot: Snapshot) -> None:
            got.append(snapshot)

        def close(self, state: RunState, report: Snapshot | None) -> None:
            got.append(Snapshot((), -1))

    follower = Follower(run, [Stuck(), Sound()], said.append, every_s=0.01)
    follower.start()
    wait_until(lambda: len(got) > 1 and bool(said))
    assert said == ["metrics: Stuck has not taken its figures for 0 s; the job goes on"]
    follower.stop()
    assert got[-1].step == -1
    assert said[1:] == [
        "metrics: Stuck did not take its figures within 1 s; the last figures may be missing there"
    ]


# -- documents -------------------------------------------------------------------------------------


def test_the_page_lists_every_metric() -> None:
    page = (TOP / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(profkit_\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    shown = [(name, unit.strip(), labels.strip(), text) for name, unit, labels, text in rows]
    assert shown == [
        (metric.name, metric.unit, ", ".join(metric.labels), metric.help)
        for metric in METRICS.values()
    ]


SELECTOR = re.compile(r"(profkit_\w+)(?:\{([^}]*)\})?")


def dashboard_queries() -> list[str]:
    board = json.loads((TOP / "docs/grafana.json").read_text(encoding="utf-8"))
    queries = [each["query"]["query"] for each in board["templating"]["list"][1:]]
    for panel in board["panels"]:
        queries += [target["expr"] for target in panel["targets"]]
    return queries


@pytest.mark.parametrize("query", dashboard_queries())
def test_a_query_of_the_dashboard_finds_its_metrics(query: str, run: Path, tmp_path: Path) -> None:
    """Every metric and label that it names is in a file that a running job leaves."""
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    path = tmp_path / "train.prom"
    open_export(str(path)).send(live(run))
    samples = read_back(path)
    selectors = SELECTOR.findall(query)
    assert selectors
    for name, matchers in selectors:
        own = [dict(labels) for found, labels in samples if found == name]
        assert own, f"{name} is not in the file"
        for label, operator, value in re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', matchers):
            assert operator == "=~"
            pattern = re.sub(r"\$(workload|run)", ".*", value)
            assert any(re.fullmatch(pattern, labels[label]) for labels in own), (name, label)
    for label in re.findall(r"(?:by|on) \((\w+)\)", query):
        assert label in {*RUN_LABELS, "phase", "rank"}


def test_the_queries_of_the_dashboard_are_promql() -> None:
    parser = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    for query in dashboard_queries():
        if not query.startswith("label_values"):
            parser.parse(re.sub(r"\$\w+", ".*", query))


def test_values_are_finite(run: Path) -> None:
    assert all(math.isfinite(point.value) for point in live(run).points)
