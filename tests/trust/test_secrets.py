"""Secrets in a job's environment, its command and another tool's file.

They must not appear in anything that profkit writes.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from profkit.cli import main
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from profkit.vocab import TABLES
from tests.scripts import load

CANARY = "c4n4ry"
JOB = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(96, 4), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""

SHAPES = {
    "HF_API_KEY": f"hf_{CANARY}ABCDEFGHIJKLMNOPQRSTU",
    "HUGGING_FACE_HUB_TOKEN": f"hf_{CANARY}",
    "WANDB_API_KEY": f"{CANARY}0123456789abcdef0123456789abcdef",
    "AWS_ACCESS_KEY_ID": f"AKIA{CANARY}ABCDEFGH",
    "AWS_SECRET_ACCESS_KEY": f"wJalr/{CANARY}/bPxRfiCYEXAMPLEKEY",
    "GITHUB_TOKEN": f"ghp_{CANARY}16C7e42F292c6912E7",
    "GITLAB_TOKEN": f"glpat-{CANARY}-abcdef",
    "OPENAI_API_KEY": f"sk-{CANARY}-abcdefghijklmnop",
    "SLACK_BOT_TOKEN": f"xoxb-{CANARY}-123456789012",
    "GOOGLE_API_KEY": f"AIza{CANARY}SyDaGmWKa4JsXZHjGw7ISLn",
    "NPM_TOKEN": f"npm_{CANARY}",
    "PYPI_TOKEN": f"pypi-{CANARY}AgEIcHlwaS5vcmc",
    "DATABASE_URL": f"postgres://me:{CANARY}@db/prod",
    "NCCL_AUTH_TOKEN": CANARY,
    "CUDA_LICENSE_KEY": CANARY,
    "TORCH_SESSION": f"eyJhbGciOi{CANARY}.eyJzdWIiOiIx",
    "PADDLE_JOB_PASSWORD": CANARY,
    "FLAGS_credential": CANARY,
    "OMP_COOKIE": f"{CANARY}=1",
    "NCCL_COMMENT": f"https://me:{CANARY}@proxy",
}
"""Twenty variables as they stand around real jobs; some begin as settings do that are recorded."""

ARGUMENTS = [
    "--api-key",
    CANARY,
    f"--token={CANARY}",
    "--password",
    CANARY,
    f"https://me:{CANARY}@host/repo",
    f"WANDB_API_KEY={CANARY}",
    f"ghp_{CANARY}16C7e42F",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a job and import a file, both full of secrets, and write every report and export."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "job.py").write_text(JOB)
    env = {**os.environ, **SHAPES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "run", "--", sys.executable, "job.py", *ARGUMENTS],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "said").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    _import_with_secrets(folder)
    for number, run in enumerate(find_runs(folder / "traces")):
        for shape in ("html", "md", "json", "txt"):
            assert main(["report", str(run), "-w", str(folder / f"{number}.{shape}")]) == 0
        assert (
            main(
                [
                    "export",
                    str(run),
                    "--format",
                    "csv",
                    "--steps",
                    "all",
                    "-w",
                    str(folder / f"{number}.csv"),
                ]
            )
            == 0
        )
    return folder


def _import_with_secrets(folder: Path) -> None:
    """Nsight Systems keeps the whole environment in its file."""
    path = folder / "export.sqlite"
    path.write_bytes(load("trace_samples").nsys())
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE META_DATA_CAPTURE (name, value)")
        base.execute(
            "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)"
        )
        for number, (name, value) in enumerate(SHAPES.items()):
            base.execute(
                "INSERT INTO META_DATA_CAPTURE VALUES (?, ?)",
                (f"PROCESS_0:ENVIRONMENT_VARIABLE:{number}", f"{name}={value}"),
            )
            base.execute(
                "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'DeviceEnvironment', ?, 0, ?)",
                (name, value),
            )
    base.close()
    assert main(["import", str(path), "-o", str(folder / "traces")]) == 0
    path.unlink()


def test_no_file_holds_one(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


def test_no_name_and_no_value_in_a_table_is_one(folder: Path) -> None:
    """Tables are compressed, so that their bytes do not tell."""
    runs = find_runs(folder / "traces")
    assert len(runs) == 2
    for run in runs:
        trace = Trace.open(run)
        assert trace.steps.num_rows or "nsys" in str(trace.manifest.config)
        for table in TABLES:
            for column in (
                trace.table(table).columns
                if table != "strings"
                else [pa.chunked_array([rank.names for rank in trace.ranks])]
            ):
                assert CANARY not in str(column.to_pylist())


def test_files_are_their_owners_alone(folder: Path) -> None:
    for run in find_runs(folder / "traces"):
        assert {path.stat().st_mode & 0o077 for path in [run, *run.rglob("*")]} == {0}
