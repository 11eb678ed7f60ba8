"""The way from this process to the actors of the shared instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from instance import Instance

from actors import ray_access
from actors.cluster import RayCluster
from runtime.settings import load


@pytest.fixture(scope="session")
def ray_driver(shared_instance: Instance) -> Iterator[Any]:
    """Yield Ray, connected to the shared instance as one more driver in its namespace."""
    info = shared_instance.info
    with pytest.MonkeyPatch.context() as env:
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            env.setenv(name, "")  # remembered, so that what `use_token` sets is undone
            env.delenv(name)
        ray_access.use_token(shared_instance.data_dir)
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
