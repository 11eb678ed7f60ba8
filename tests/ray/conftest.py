"""The way from this process to the actors of the shared instance, and an instance that can be frozen at each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import postgres_server
import pytest
from freezing import Stops
from instance import Instance
from postgres_server import PostgresServer

from actors import ray_access
from actors.cluster import RayCluster
from runtime.settings import load


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests first that make a cluster in this process: whoever has joined one with a token (`ray_driver`) keeps
    asking for it."""
    items.sort(key=lambda item: item.path.name != "test_lost_nodes.py")


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


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def frozen_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield what OUTLAST_STORE of `frozen` is; every test of it is made on each store."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    if postgres_server.programs() is None:
        pytest.skip("PostgreSQL's server is not installed")  # as lane `postgres`, which says how to get it
    server = PostgresServer()
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def stops(tmp_path_factory: pytest.TempPathFactory, frozen_store: str) -> Stops:
    """Return where the parts of `frozen` are told to stop."""
    del frozen_store  # each store's instance has orders of its own
    return Stops(tmp_path_factory.mktemp("frozen") / "stops")


@pytest.fixture(scope="session")
def frozen_instance(tmp_path_factory: pytest.TempPathFactory, frozen_store: str, stops: Stops) -> Iterator[Instance]:
    settings = {
        **stops.settings,
        "OUTLAST_STORE": frozen_store,
        "OUTLAST_LEASE_TTL_S": "1",
        "OUTLAST_START_TTL_S": "2",
        "OUTLAST_REAP_INTERVAL_S": "1",
        "OUTLAST_MAX_RUNS": "60",
        "OUTLAST_WARM_WORKERS": "4",
    }
    frozen = Instance(tmp_path_factory.mktemp("frozen-instance"), settings)
    try:
        frozen.start()
        yield frozen
        assert frozen.stop() == 0
        assert not frozen.sandboxes(), "runs left sandboxes behind"
    finally:
        frozen.close()


@pytest.fixture
def frozen(frozen_instance: Instance) -> Iterator[Instance]:
    """Yield an instance whose processes stop at the steps that `stops` orders; every part answers before and after."""
    frozen_instance.wait_ready(within_s=40)
    yield frozen_instance
    frozen_instance.wait_ready(within_s=40)
