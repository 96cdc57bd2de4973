"""Start the ranks of a job like torchrun, which takes longer to start than the jobs here run.

    python hang_launch.py COUNT SCRIPT [ARGUMENT ...]

If a rank fails, the others are ended.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time


def free_ports(ranks: int) -> list[int]:
    """Return free ports: the one at which all ranks meet, and one for each rank."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks + 1)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def rank_variables(rank: int, ports: list[int]) -> dict[str, str]:
    """Return the variables by which torchrun and Paddle's launcher make a process a rank."""
    count = len(ports) - 1
    addresses = [f"127.0.0.1:{port}" for port in ports[1:]]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_TRAINERS_NUM": str(count),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
        "PADDLE_CURRENT_ENDPOINT": addresses[rank],
        "PADDLE_MASTER": f"127.0.0.1:{ports[0]}",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def main() -> int:
    count, command = int(sys.argv[1]), sys.argv[2:]
    ports = free_ports(count)
    processes = []
    for rank in range(count):
        environment = {**os.environ, **rank_variables(rank, ports), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([sys.executable, *command], env=environment))
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            break
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
