"""Make the environment in which the programs run, with the packages that only they need."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
GROUPS = ("demo", "test")
PACKAGES = ("ultralytics", "nbconvert", "ipykernel")
STATE = "packages.json"


def python(env: Path) -> Path:
    return env / "bin" / "python"


def make(env: Path) -> None:
    """Make the environment unless it exists; a package that does not install is left out."""
    if (env / STATE).exists():
        return
    _run("uv", "venv", str(env), "--python", "3.11", "--clear")
    groups = [word for group in GROUPS for word in ("--group", group)]
    wanted = _run("uv", "export", "-q", "--frozen", "--no-hashes", "--no-emit-project", *groups)
    listed = env / "requirements.txt"
    listed.write_text(wanted, encoding="utf-8")
    install = ("uv", "pip", "install", "-q", "--python", str(python(env)))
    _run(*install, "-r", str(listed))
    _run(*install, "--no-deps", "-e", str(TOP))
    _run(*install, "setuptools<81", "wheel", "opencv-python-headless")
    pins = env / "pins.txt"
    heavy = ("torch==", "torchvision==", "paddlepaddle==", "numpy==")
    pins.write_text("\n".join(line for line in _freeze(env) if line.startswith(heavy)))
    failed = {}
    for package in PACKAGES:
        try:
            _run(*install, "-c", str(pins), "--no-build-isolation", package)
        except RuntimeError as error:
            failed[package] = str(error)
    versions = dict(line.split("==") for line in _freeze(env) if "==" in line)
    state = {"versions": versions, "failed": failed}
    (env / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")


def read(env: Path) -> dict[str, Any]:
    """Return the versions of the packages, and the reasons of those that did not install."""
    path = env / STATE
    if not path.exists():
        return {"versions": {}, "failed": {}}
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return state


def _freeze(env: Path) -> list[str]:
    return _run("uv", "pip", "freeze", "--python", str(python(env))).splitlines()


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=TOP)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise RuntimeError(f"{' '.join(words[:4])}: {last[:200]}")
    return done.stdout
