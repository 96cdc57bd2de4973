"""Facts of machine and code: optional, quick, without secrets, and never a cause."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from profkit.analysis.config_join import ANY, NONE, join_config
from profkit.run import facts
from profkit.trace import RunManifest, Trace
from profkit.trace.reader import find_runs

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git work tree with one commit."""
    folder = tmp_path / "tree"
    (folder / "jobs").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "jobs" / "train.py").write_text("pass\n")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_reader_that_hangs_delays_nothing_and_loses_only_what_follows() -> None:
    released = threading.Event()

    def fail() -> None:
        raise OSError("stale file handle")

    readers: dict[str, Callable[[], object]] = {"first": lambda: 1, "broken": fail, "empty": str}
    readers |= {"second": lambda: 2}
    readers |= {"hung": lambda: released.wait(60), "last": lambda: 3}
    begin = time.monotonic()
    found = facts.read_within(0.2, readers)
    assert time.monotonic() - begin < 5
    assert found == {"first": 1, "second": 2}
    released.set()


def test_the_facts_of_this_machine_are_plain() -> None:
    found = facts.read_facts()
    assert set(found["limits"]) == {"memlock", "nofile", "stack"}
    assert found["shm_bytes"] == facts.shared_memory_bytes() > 0
    assert str(Path.home()) not in str(found)


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, {}, {}),
        ({}, {".dockerenv": ""}, {"kind": "docker"}),
        ({}, {"proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, {"kind": "kubepods"}),
        ({}, {"proc/1/cgroup": "0::/init.scope\n"}, {}),
        (
            {},
            {"run/.containerenv": 'engine="podman"\nimage="quay.io/me/job:3@sha256:ab"\n'},
            {"kind": "podman", "image": "quay.io/me/job:3"},
        ),
        (
            {},
            {"run/.containerenv": f'image="{SECRET}"\n'},
            {"kind": "podman", "image": "(left out)"},
        ),
        ({"APPTAINER_NAME": "job.sif"}, {}, {"kind": "apptainer", "image": "job.sif"}),
        (
            {
                "NVIDIA_PRODUCT_NAME": "PyTorch",
                "NVIDIA_PYTORCH_VERSION": "24.05",
                "NVIDIA_BUILD_ID": "91431255",
            },
            {".dockerenv": ""},
            {"kind": "docker", "image": "NVIDIA PyTorch 24.05 (build 91431255)"},
        ),
    ],
)
def test_a_container_is_known_by_its_files_and_variables(
    tmp_path: Path, environ: dict[str, str], files: dict[str, str], expected: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert facts.read_container(environ, tmp_path) == expected


def test_the_revision_is_the_one_of_git_and_knows_changes(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    assert facts.read_revision(tree / "jobs") == {"commit": commit, "dirty": False}
    (tree / "not-tracked.txt").write_text("1")
    assert facts.read_revision(tree) == {"commit": commit, "dirty": False}
    (tree / "jobs" / "train.py").write_text("1\n")
    assert facts.read_revision(tree) == {"commit": commit, "dirty": True}
    assert facts.read_revision(tree.parent) == {}


def test_the_commit_is_found_wherever_git_keeps_it(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    git(tree, "pack-refs", "--all")
    assert facts.read_commit(tree / ".git") == commit
    git(tree, "worktree", "add", "--quiet", "-b", "other", str(tree.parent / "second"))
    assert facts.read_commit(tree.parent / "second" / ".git") == commit
    git(tree, "checkout", "--quiet", "--detach")
    assert facts.read_commit(tree / ".git") == commit
    (tree / ".git" / "HEAD").write_text("no commit\n")
    assert facts.read_commit(tree / ".git") == ""


def test_in_a_job_no_program_is_started(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    commit = facts.read_commit(tree / ".git")
    assert facts.read_revision(tree, in_job=True) == {"commit": commit}


def test_a_git_that_fails_leaves_the_commit(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tree))
    assert facts.read_revision(tree) == {"commit": facts.read_commit(tree / ".git")}


def test_libraries_are_those_of_the_loaded_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91002)),
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 27, 3))),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    expected = {"cuda": "12.8", "cudnn": "91002", "nccl": "2.27.3"}
    assert facts.read_libraries("torch", "cuda:0") == expected
    assert facts.read_libraries("torch", "cpu") == {}
    del torch.backends
    torch.version.cuda = None
    assert facts.read_libraries("torch", "cuda:0") == {"nccl": "2.27.3"}
    assert facts.read_libraries("another", "cuda:0") == {}


def test_what_identifies_a_machine_is_listed_and_explains_no_row() -> None:
    known = {
        "distribution": "Debian 12",
        "container": {"kind": "docker", "image": "job:1"},
        "shm_bytes": 64 << 20,
        "limits": {"nofile": 1024},
        "gpu_memory_bytes": [80 << 30],
        "revision": {"commit": "a" * 40, "dirty": False},
        "libraries": {"cudnn": "90100"},
    }
    other = {
        "distribution": "Ubuntu 24.04",
        "container": {"kind": "podman", "image": "job:2"},
        "shm_bytes": 1 << 30,
        "limits": {"nofile": 4096},
        "gpu_memory_bytes": [94 << 30],
        "revision": {"commit": "b" * 40, "dirty": True},
        "libraries": {"cudnn": "91002"},
    }
    found = join_config(
        RunManifest("job", environment=known), RunManifest("job", environment=other)
    )
    rows = {each.name: each.rows for each in found}
    assert len(rows) == 9
    assert {name for name, row in rows.items() if row == NONE} == {"shm_bytes", "limits.nofile"}
    assert set(rows.values()) == {ANY, NONE}
    assert join_config(RunManifest("job", environment=known), RunManifest("job")) == ()


JOB = """
import os, torch

os.environ["OMP_NUM_THREADS"] = "1"
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("launched", [True, False])
def test_a_job_is_recorded_with_its_code_and_each_ranks_own_variables(
    tree: Path, tmp_path: Path, *, launched: bool
) -> None:
    script = tree / "jobs" / "train.py"
    script.write_text(JOB if launched else f"import profkit\nprofkit.loader([])\n{JOB}")
    variables = {**os.environ, "OMP_NUM_THREADS": "2", "NCCL_DEBUG": SECRET}
    variables["PROFKIT_OUTPUT"] = str(tmp_path / "traces")
    command = [sys.executable, str(script)]
    if launched:
        command = [sys.executable, "-m", "profkit", "run", "--", *command]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = find_runs(tmp_path / "traces")
    trace = Trace.open(run)
    (rank,) = trace.ranks
    revision = trace.manifest.environment["revision"]
    assert revision["commit"] == git(tree, "rev-parse", "HEAD")
    assert revision.get("dirty") == (True if launched else None)
    assert rank.manifest.environment["variables"]["OMP_NUM_THREADS"] == "1"
    texts = [path.read_text() for path in run.rglob("*.json")]
    assert SECRET not in "".join(texts)
