"""A real Ray cluster of this machine for tests: nodes of one CPU each, bound to the loopback interface.

from clusters import ENV, kill, needs_ray, nodes, tasks
"""

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertvision.train.on_ray import LOCAL

ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    **LOCAL,
}  # of nodes and drivers, which must agree
needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the package ray (bertvision[ray])")


@contextmanager
def nodes(count: int) -> Iterator[str]:
    """The address of a cluster, which ends with the block, or with this process."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in ENV.items():
            patched.setenv(name, value)
        from ray.cluster_utils import Cluster

        each = {"num_cpus": 1, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
        try:
            for _ in range(count - 1):
                cluster.add_node(**each)
            yield cluster.address
        finally:
            cluster.shutdown()


def tasks() -> dict[str, int]:
    """{name: process} of the tasks that Ray's workers on this machine are at."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title = (place / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:  # has ended
            continue
        if title.startswith("ray::"):
            found[title.removeprefix("ray::")] = int(place.name)
    return found


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
