"""Compile the C extensions for tests, if the installation did not."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest


def compile_module(source: Path, folder: Path) -> ModuleType:
    """Compile a C file and return its module; skip without a compiler, or if it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip(
            f"no compiled {source.stem} is installed, and there is no compiler to build one"
        )
    built = folder / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
    done = subprocess.run(
        [
            compiler,
            "-O2",
            "-shared",
            "-fPIC",
            f"-I{sysconfig.get_paths()['include']}",
            str(source),
            "-o",
            str(built),
        ],
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{source.stem} could not be built here")
    spec = importlib.util.spec_from_file_location(source.stem, built)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
