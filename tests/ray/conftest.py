"""The way from this process to the actors of the shared instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from instance import Instance

from actors.cluster import RayCluster
from runtime.settings import load
from serve_app import ray_environment


@pytest.fixture(scope="session")
def ray_driver(shared_instance: Instance) -> Iterator[Any]:
    """Yield Ray, connected to the shared instance as one more driver in its namespace."""
    info = shared_instance.info
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RAY_AUTH_MODE", "")  # remembered, so that what `prepare` sets is undone
        env.delenv("RAY_AUTH_MODE")
        ray_environment.prepare(info.ray_temp_dir, own=False)
        import ray  # noqa: PLC0415 - it reads the environment

        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "error"}
        ray.init(address=info.ray_address, namespace=info.namespace, **options)
        yield ray
        ray.shutdown()


@pytest.fixture
def cluster(instance: Instance, ray_driver: Any) -> RayCluster:
    """Return the actors of the shared instance as a gateway replica sees them."""
    deployment = (instance.data_dir / "deployment").read_text().strip()
    return RayCluster(load(instance.env), deployment)
