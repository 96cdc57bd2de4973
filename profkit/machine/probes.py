"""Ask frameworks, CUPTI and CuPy what they see, each in a process of its own.

What a framework does while it is imported must not affect profkit's own process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

TIMEOUT_S = 120
"""A framework may take this long to be imported and to answer."""

_TORCH = """
import json
import torch

cuda = torch.cuda
devices = []
for number in range(cuda.device_count()):
    capability = "%d%d" % cuda.get_device_capability(number)
    devices.append([capability, cuda.get_device_name(number)])
distributed = torch.distributed
has_nccl = distributed.is_available() and distributed.is_nccl_available()
libraries = {}
if devices:
    libraries["cuDNN"] = torch.backends.cudnn.version()
    libraries["NCCL"] = ".".join(map(str, cuda.nccl.version())) if has_nccl else None
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "built": cuda.get_arch_list(),
    "devices": devices,
    "nccl": has_nccl,
    "libraries": libraries,
    "group_hooks": hasattr(getattr(distributed, "ProcessGroup", None), "register_pre_hook"),
}))
"""

_PADDLE = """
import json
import paddle

has_cuda = paddle.device.is_compiled_with_cuda()
cuda = paddle.device.cuda
count = cuda.device_count() if has_cuda else 0
print(json.dumps({
    "version": paddle.__version__,
    "cuda": paddle.version.cuda() if has_cuda else None,
    "built": [],
    "devices": [["", cuda.get_device_name(number)] for number in range(count)],
    "nccl": has_cuda,
    "libraries": {"cuDNN": paddle.version.cudnn()} if count else {},
}))
"""

_CUPTI = """
import json
from importlib.metadata import version
from cupti import cupti

kind = cupti.ActivityKind.CONCURRENT_KERNEL
cupti.activity_enable(kind)
cupti.activity_disable(kind)
print(json.dumps({"version": version("cupti-python")}))
"""

_CUPY = """
import json
import cupy
from cupy_backends.cuda.libs import cublas, nvrtc

nvrtc.getVersion()
print(json.dumps({"version": cupy.__version__}))
"""

_SCRIPTS = {"torch": _TORCH, "paddle": _PADDLE, "cupti": _CUPTI, "cupy": _CUPY}


def probe(name: str) -> dict[str, Any]:
    """Return what a framework or CUPTI reports of itself, or its `error`."""
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _SCRIPTS[name]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            found: dict[str, Any] = json.loads(lines[-1])
            return found
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    errors = done.stderr.strip().splitlines() or ["it ended"]
    return {"error": errors[-1]}
