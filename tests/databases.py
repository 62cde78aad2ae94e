"""The database servers of a test run, one each, found in this order:

1. `SHARECOORD_TEST_POSTGRES`, `SHARECOORD_TEST_MARIADB`: URLs as for `--store`, of users who may
   make schemas (PostgreSQL) or databases (MariaDB, MySQL).
2. Docker through testcontainers, when `docker info` succeeds and the image is there or can be
   pulled. An image that can not be had costs seconds, and the run goes on with 3.
3. A local process. Without its programs the tests fail with the line that installs them;
   MariaDB's then belong to `make test-long`, which installs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from sharecoord.devenv.databases import (
    DATABASE,
    PASSWORD,
    USER,
    DatabaseServer,
    MariaDbServer,
    PostgresServer,
    execute,
    mariadb_program,
)
from sharecoord.devenv.errors import DevenvError
from tests.support import DockerCli, Engine, eventually, start_or_fail

POSTGRES_VARIABLE = "SHARECOORD_TEST_POSTGRES"
MARIADB_VARIABLE = "SHARECOORD_TEST_MARIADB"


@dataclass(frozen=True, slots=True)
class DatabaseUnderTest:
    """A server of this test run.

    Attributes:
        url: Address with user, password and database.
        source: `environment`, `docker` or `local`.
    """

    url: str
    source: str


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """How a server is found."""

    variable: str
    image: str
    scheme: str
    port: int
    settings: dict[str, str]
    """Environment of the container."""
    local: type[DatabaseServer]


POSTGRES = DatabaseKind(
    POSTGRES_VARIABLE,
    "postgres:17",
    "postgresql",
    5432,
    {"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE},
    PostgresServer,
)
MARIA_DB = DatabaseKind(
    MARIADB_VARIABLE,
    "mariadb:11.4",
    "mysql",
    3306,
    {"MARIADB_ROOT_PASSWORD": PASSWORD, "MARIADB_DATABASE": DATABASE},
    MariaDbServer,
)


def _has_mariadb_programs() -> bool:
    try:
        for name in ("mariadbd", "mariadb-install-db", "my_print_defaults"):
            mariadb_program(name)
    except DevenvError:
        return False
    return True


MARIADB_PROGRAMS: list[pytest.MarkDecorator] = [
    pytest.mark.mariadb,
    *([] if _has_mariadb_programs() else [pytest.mark.long]),
]
"""Marks of tests that start a MariaDB of their own."""

MARIADB: list[pytest.MarkDecorator] = (
    [pytest.mark.mariadb] if os.environ.get(MARIADB_VARIABLE) else MARIADB_PROGRAMS
)
"""Marks of tests that need any MariaDB."""


@contextmanager
def database(kind: DatabaseKind, engine: Engine | None = None) -> Iterator[DatabaseUnderTest]:
    """The server of a run; see the head of this file for where it comes from."""
    engine = engine or DockerCli()
    address = os.environ.get(kind.variable)
    if address:
        yield DatabaseUnderTest(address, "environment")
    elif engine.answers() and engine.problem_with(kind.image) is None:
        with _container(kind) as found:
            yield found
    else:
        with _local(kind) as found:
            yield found


@contextmanager
def _container(kind: DatabaseKind) -> Iterator[DatabaseUnderTest]:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(kind.image).with_exposed_ports(kind.port)
    with container.with_envs(**kind.settings):
        user = USER if kind is POSTGRES else "root"
        place = f"{container.get_container_host_ip()}:{container.get_exposed_port(kind.port)}"
        url = f"{kind.scheme}://{user}:{PASSWORD}@{place}/{DATABASE}"
        eventually(lambda: execute(url, "SELECT 1"), 60.0, f"{kind.image} answers")
        yield DatabaseUnderTest(url, "docker")


@contextmanager
def _local(kind: DatabaseKind) -> Iterator[DatabaseUnderTest]:
    server = kind.local()
    start_or_fail(server)
    try:
        yield DatabaseUnderTest(server.url, "local")
    finally:
        server.close()
