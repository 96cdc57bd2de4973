"""Runs behind addresses, read from an S3 server on loopback."""

from __future__ import annotations

import json
import logging
import pickle
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from profkit import address
from profkit.address import Address, to_path
from profkit.cli import main
from profkit.errors import ExitCode, UsageError
from profkit.testing import synthetic_trace
from profkit.trace import Trace

BUCKET = "bucket"
OBJECT = re.compile(rf'"GET /{BUCKET}/(\S+) ')


def test_what_is_below_an_address_keeps_its_options_and_hides_its_password() -> None:
    run = to_path("s3://KEY:SECRET@bucket/team/a%20run?region=eu-1&scheme=http")
    assert str(run / "r00000") == "s3://bucket/team/a run/r00000?region=eu-1&scheme=http"
    assert (run / "r00000").parent == run == pickle.loads(pickle.dumps(run))
    assert str((run / "r00000" / "x").relative_to(run)) == "r00000/x"
    assert to_path(Path(str(run))) == run, "a Path has one slash where the address has two"


def test_only_addresses_are_no_paths() -> None:
    assert to_path("file:///runs/a%20run") == Path("/runs/a run")
    for word in ("runs/one", "s3", "odd:/name"):
        assert type(to_path(word)) is type(Path()), word
    with pytest.raises(UsageError, match="unknown kind of address; known are s3://, gs://"):
        to_path("ftp://host/run")


class Server:
    """An S3 server with two runs in a folder, and what was read of it."""

    def __init__(self, folder: Path) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.host = f"{host}:{port}"
        self.options = f"?endpoint_override={self.host}&scheme=http&region=us-east-1"
        self.folder = folder
        self.root = f"s3://{BUCKET}/team"
        for number, name in enumerate(("one", "two")):
            synthetic_trace(folder / name, ranks=2, steps=30, kernels_per_step=2, seed=number)
        files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}{self.options}&allow_bucket_creation=true")
        files.create_dir(BUCKET)
        fs.copy_files(str(folder), f"{BUCKET}/team", destination_filesystem=files)

    def address(self, name: str) -> str:
        return f"{self.root}/{name}{self.options}"

    def close(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        started = Server(tmp_path_factory.mktemp("runs"))
        yield started
        started.close()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN", "--json"],
        ["report", "RUN", "--scheduler", "threads", "--json"],
        ["verify", "RUN", "--json"],
        ["explain", "RUN", "ROOT/two", "--json"],
        ["explain", "RUN,ROOT/two", "RUN", "--json"],
        ["explain", "RUN", "--at", "15", "--json"],
        ["whatif", "RUN", "--base", "ROOT/two", "--json"],
        [
            "sql",
            "RUN",
            "select rank, sum(end_ns - start_ns) from steps group by rank order by rank",
        ],
        ["history", "ROOT", "--json"],
        ["tui", "RUN", "--screen", "kernels", "--json"],
        ["tui", "ROOT", "--json"],
        ["why", "RUN"],
    ],
    ids=lambda words: "-".join(word.strip("-") for word in words[:4]).replace("/", "."),
)
def test_an_address_gives_the_same_as_a_folder(
    words: list[str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(root: str, options: str) -> tuple[int, str]:
        given = []
        for word in words:
            parts = word.replace("RUN", "ROOT/one").split(",")
            whole = [f"{part}{options}" if "ROOT" in part else part for part in parts]
            given.append(",".join(whole).replace("ROOT", root))
        code = main(given)
        shown = capsys.readouterr().out
        return code, " ".join(shown.replace(options or "?", "").replace(root, "ROOT").split())

    assert answer(server.root, server.options) == answer(str(server.folder), "")


def test_exports_and_baselines_are_made_of_an_address(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = server.address("one")
    assert main(["export", run, "--format", "csv", "-w", str(tmp_path / "out")]) == ExitCode.DONE
    assert (tmp_path / "out").exists()
    kept = ["--baselines", str(tmp_path / "kept")]
    assert main(["explain", run, "--save-baseline", "good", *kept]) == ExitCode.DONE
    assert main(["explain", "--baseline", "good", run, *kept, "--gate", "1%"]) == ExitCode.DONE
    assert "neutral" in capsys.readouterr().out


def test_a_file_of_another_tool_is_imported_from_an_address(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}{server.options}")
    exported = tmp_path / "one.json"
    assert main(["export", str(server.folder / "one"), "-w", str(exported)]) == ExitCode.DONE
    fs.copy_files(str(exported), f"{BUCKET}/other/one.json", destination_filesystem=files)
    capsys.readouterr()
    given = f"s3://{BUCKET}/other/one.json{server.options}"
    runs = []
    for source in given, str(exported):
        assert main(["import", source, "-o", str(tmp_path / "runs"), "--json"]) == ExitCode.DONE
        runs.extend(json.loads(capsys.readouterr().out))
    assert runs[0]["rows"]["steps"] == 20
    assert runs[0]["rows"] == runs[1]["rows"]
    assert runs[0]["sources"] == [given]


def test_each_file_is_read_once(
    server: Server, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    address._open_store.cache_clear()
    with caplog.at_level(logging.INFO, logger="werkzeug"):
        assert main(["report", server.address("one"), "--json"]) == ExitCode.DONE
        read = OBJECT.findall(caplog.text)
        requests = len(caplog.records)
        caplog.clear()
        assert main(["report", server.address("one"), "--json"]) == ExitCode.DONE
        again = OBJECT.findall(caplog.text)
    assert len(read) == len(set(read))
    files = [path for path in (server.folder / "one").rglob("*") if path.is_file()]
    sizes = {f"team/{path.relative_to(server.folder)}": path.stat().st_size for path in files}
    assert set(read) <= set(sizes)
    assert 0 < sum(sizes[name] for name in read) <= sum(sizes.values())
    assert requests <= 2 * len(read) + 5, "a question and an answer for each file, and listings"
    assert not again, "a copy is kept while this process lives"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("s3://no-such/run{options}", "s3://no-such/run: no such bucket"),
        ("s3://bucket/team/three{options}", "no such folder; the newest run in the same folder is"),
        ("s3://bucket/team{options}", "holds 2 runs and is none itself; name one, such as s3://"),
        ("s3://bucket/team/one/run.json{options}", "a file, and a run is a folder"),
        ("s3://bucket/run?no_option=1", "Unexpected query parameter"),
        ("hdfs://nowhere/run", "hdfs://nowhere/: Unable to load"),
    ],
)
def test_a_bad_address_is_one_clear_line(
    given: str, problem: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["report", given.format(options=server.options)])
    printed = capsys.readouterr().err
    assert (code, printed.count("\n")) == (ExitCode.UNREADABLE, 1)
    assert problem in printed


def test_a_server_that_knows_no_such_user_is_one_clear_line(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_users_after(requests: str) -> None:
        control = f"http://{server.host}/moto-api/reset-auth"
        kind = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(control, requests.encode(), kind)):
            pass

    address._open_store.cache_clear()
    check_users_after("0")
    try:
        given = server.address("one").replace("s3://", "s3://KEY:SECRET@")
        assert main(["report", given]) == ExitCode.UNREADABLE
    finally:
        check_users_after("inf")
    printed = capsys.readouterr().err
    assert "SECRET" not in printed
    assert "the access key" in printed or "no permission" in printed


def test_a_name_cannot_lead_a_copy_elsewhere(server: Server) -> None:
    files, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}{server.options}")
    with files.open_output_stream(f"{BUCKET}/evil/run.json") as file:
        file.write(b"{}")
    name = f"http://{server.host}/{BUCKET}/evil/..%2F..%2F..%2Fescaped"
    with urllib.request.urlopen(urllib.request.Request(name, b"x", method="PUT")):
        pass
    evil = to_path(f"s3://{BUCKET}/evil{server.options}")
    assert {path.name for path in evil.rglob("*")} == {"run.json"}


def test_a_trace_is_opened_from_python(server: Server) -> None:
    trace = Trace.open(server.address("two"))
    assert isinstance(trace.path, Address)
    assert trace.steps.equals(Trace.open(server.folder / "two").steps)
    assert trace.name == "two"
