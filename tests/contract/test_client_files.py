"""librdkafka's clients after a change of certificates: new ones read the new files."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import InvalidConfigError, KafkaUnavailableError
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.kafka.catalog import KafkaCatalog
from sharecoord.kafka.client import make_admin
from sharecoord.kafka.client_files import client_files
from sharecoord.kafka.wire.held_files import HeldFiles
from sharecoord.producing.frames import ProducerSettings
from sharecoord.producing.producers import Producers
from sharecoord.security.key_pairs import days_left
from tests.certificates import Authority, Live, Pair, replace_file

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def live(tmp_path: Path, ca: Authority) -> Live:
    return Live(tmp_path / "live", ca.issue("client"), ca.certificate)


def settings_of(live: Live, servers: str = "localhost:9") -> dict[str, str]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "ssl",
        "ssl.ca.location": str(live.authorities),
        "ssl.certificate.location": str(live.certificate),
        "ssl.key.location": str(live.key),
    }


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    target.close()


@asynccontextmanager
async def tls_before(cluster: MockCluster, pair: Pair, clients: Path) -> AsyncIterator[str]:
    """An address that speaks TLS with clients of an authority, and passes on what they say."""
    host, _, port = cluster.bootstrap_servers.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    context = pair.server(clients=clients)
    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_renewed_catalog_brings_the_new_certificate(
    mock_cluster: MockCluster, ca: Authority, other_ca: Authority, live: Live
) -> None:
    async with tls_before(mock_cluster, other_ca.issue("broker"), other_ca.certificate) as servers:
        settings = settings_of(live, servers)
        files = client_files(settings)
        assert files is not None
        catalog = KafkaCatalog(settings)
        with pytest.raises(KafkaUnavailableError):
            await catalog.cluster_id()
        live.put(other_ca.issue("client"), other_ca.certificate)
        assert await asyncio.to_thread(files.look)
        catalog.renew()
        assert (await catalog.cluster_id()).startswith("mockCluster")
        await catalog.close()


def test_what_librdkafka_refuses_is_a_problem_and_changes_nothing(
    ca: Authority, live: Live
) -> None:
    files = client_files(settings_of(live))
    assert files is not None
    before = files.value
    assert before.contents["ssl.key.location"] == live.key.read_bytes()
    assert 1.9 < days_left(before.ends_s)["kafka.ssl.certificate.location"] <= 2.0
    replace_file(live.key, ca.issue("another").key.read_bytes())
    assert not files.look()
    assert "librdkafka refuses it" in files.problem
    replace_file(live.key, b"")
    assert not files.look()
    assert files.value is before
    with pytest.raises(InvalidConfigError, match=r"kafka\..*librdkafka refuses"):
        client_files(settings_of(live))
    live.put(ca.issue("renewed"))
    assert files.look()
    assert files.problem == ""


async def test_clients_that_are_made_while_files_are_broken_have_those_in_force(
    ca: Authority, live: Live
) -> None:
    settings = settings_of(live)
    files = client_files(settings)
    assert files is not None
    reader = KafkaLogReader(settings)
    replace_file(live.key, b"broken")
    assert not files.look()
    with pytest.raises(InvalidConfigError):
        make_admin(settings)
    # Those of the coordinator itself, and of its process of producers.
    assert [chunk async for chunk in reader.scan("t", [])] == []
    held = HeldFiles(settings, files.value.contents)
    make_admin(held.settings)
    producers = Producers(
        ProducerSettings(
            kafka=settings, files=dict(files.value.contents), transactional_producers_max=1
        )
    )
    await producers.check()
    # A process of files that came later.
    live.put(ca.issue("renewed"))
    assert files.look()
    producers.renew(files.value.contents)
    replace_file(live.certificate, b"broken")
    await producers.check()
    producers.renew({})
    with pytest.raises(InvalidConfigError):
        await producers.check()
    await producers.close()
    await reader.close()


def test_held_files_are_copies_and_gone_with_their_holder(live: Live) -> None:
    held = HeldFiles(settings_of(live), {"ssl.key.location": b"a key"})
    place = Path(str(held.settings["ssl.key.location"]))
    assert place.read_bytes() == place.read_bytes() == b"a key"
    assert held.settings["ssl.ca.location"] == str(live.authorities)
    del held
    gc.collect()
    assert not place.exists() or place.read_bytes() != b"a key"


def test_there_is_nothing_to_watch_without_tls_or_files(live: Live, tmp_path: Path) -> None:
    plain = {**settings_of(live), "security.protocol": "plaintext"}
    assert client_files(plain) is None
    folder = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path)}
    assert client_files(folder) is None
    assert client_files({"security.protocol": "ssl", "ssl.ca.location": "probe"}) is None
