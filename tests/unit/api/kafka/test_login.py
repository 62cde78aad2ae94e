"""Who gets in at the Kafka port, as whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sharecoord.api.kafka.connections.strangers import STRANGER_BYTES_MAX
from sharecoord.security.slowdown import FIRST_WAIT_S
from tests.sasl import bearer, plain, scram_first
from tests.support import eventually_async
from tests.unit.api.kafka.client import FETCH, HANDSHAKE, Client, fetched, port_of
from tests.unit.api.kafka.secured import Secured, log_in, secret_of
from tests.unit.runtime.worlds import world_with
from tests.unit.security.support import signed

OK, UNSUPPORTED_MECHANISM, ILLEGAL_STATE, UNSUPPORTED_VERSION, FAILED = 0, 33, 34, 35, 58
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
METADATA = 3


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


def principal_of(secured: Secured, member: str = "m") -> str:
    return secured.port.coordinator.groups["g"].sessions[member].principal


@pytest.mark.parametrize(
    ("mechanism", "message", "principal"),
    [
        ("PLAIN", lambda: plain("worker", secret_of("worker")), "User:worker"),
        ("PLAIN", lambda: plain("worker", secret_of("worker"), "worker"), "User:worker"),
        ("OAUTHBEARER", lambda: bearer(signed()), "User:anna"),
        ("OAUTHBEARER", lambda: bearer(signed(), "anna"), "User:anna"),
    ],
)
async def test_who_proves_it_is_known(
    secured: Secured, mechanism: str, message: Callable[[], bytes], principal: str
) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.sasl(mechanism, message())
        assert (answer.error_code.value, answer.error_message) == (OK, None)
        await secured.port.joined(client=client)
        assert principal_of(secured) == principal
        assert fetched(await client.fetch(0))[0].acquired == [(0, 5, 1)]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_proves_it_without_the_secret(secured: Secured, mechanism: str) -> None:
    async with secured.running():
        client = await secured.connect("worker", mechanism)
        await secured.port.joined(client=client)
        assert principal_of(secured) == "User:worker"


@pytest.mark.parametrize(
    ("mechanism", "message", "said"),
    [
        ("PLAIN", plain("worker", "guess"), "is not good here"),
        ("PLAIN", plain("nobody", secret_of("worker")), "is not good here"),
        ("PLAIN", plain("worker", secret_of("worker"), "operator"), "acts for another user"),
        ("PLAIN", b"worker", "is none of PLAIN"),
        ("PLAIN", b"", "is none of PLAIN"),
        ("SCRAM-SHA-256", b"worker", "is none of SCRAM"),
        ("OAUTHBEARER", b"n,,\x01\x01", "is none of OAUTHBEARER"),
    ],
)
async def test_who_does_not_prove_it_hears_so_and_the_connection_ends(
    secured: Secured, mechanism: str, message: bytes, said: str
) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.sasl(mechanism, message)
        assert answer.error_code.value == FAILED
        assert said in answer.error_message
        assert await client.ended()
        assert secured.clock.waits == [FIRST_WAIT_S]
        (line,) = await secured.told()
        assert (line["call"], line["outcome"]) == ("SaslAuthenticate", "refused")
        assert line["reason"] == "UNAUTHENTICATED"
        assert line["address"].startswith("127.0.0.1:")


@pytest.mark.parametrize("name", ["worker", "nobody"])
async def test_a_wrong_password_of_scram(secured: Secured, name: str) -> None:
    """Whether there is such a user is not to be seen."""
    async with secured.running():
        client = await secured.port.connect()
        answer = await log_in(client, name, "SCRAM-SHA-256", "guess")
        assert answer.error_code.value == FAILED
        assert "not good here" in answer.error_message
        assert await client.ended()


async def test_a_token_of_oauth_that_is_not_good(secured: Secured) -> None:
    """The client is told so by a message of the mechanism, and answers it (RFC 7628)."""
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.sasl("OAUTHBEARER", bearer(signed(aud="elsewhere")))
        assert (answer.error_code.value, answer.auth_bytes) == (OK, b'{"status":"invalid_token"}')
        answer = await client.authenticate(b"\x01")
        assert answer.error_code.value == FAILED
        assert "for another audience" in answer.error_message
        assert await client.ended()


async def test_of_an_unknown_mechanism_the_answer_has_those_there_are(secured: Secured) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.ask(HANDSHAKE, 1, mechanism="GSSAPI")
        assert (answer.error_code.value, answer.mechanisms) == (UNSUPPORTED_MECHANISM, MECHANISMS)
        assert await client.ended()


async def test_the_oldest_handshake_is_refused(secured: Secured) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.ask(HANDSHAKE, 0, mechanism="PLAIN")
        assert answer.error_code.value == UNSUPPORTED_VERSION
        assert await client.ended()


async def test_requests_of_sasl_out_of_turn(secured: Secured) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.authenticate(plain("worker", secret_of("worker")))
        assert answer.error_code.value == ILLEGAL_STATE
        assert await client.ended()
        client = await secured.port.connect()
        await client.sasl("SCRAM-SHA-256", scram_first("worker"))
        answer = await client.ask(HANDSHAKE, 1, mechanism="PLAIN")
        assert answer.error_code.value == ILLEGAL_STATE
        assert await client.ended()


async def test_where_nobody_checks_sasl_it_is_refused() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        answer = await client.ask(HANDSHAKE, 1, mechanism="PLAIN")
        assert (answer.error_code.value, answer.mechanisms) == (ILLEGAL_STATE, ())
        assert await client.ended()


async def lost(client: Client, api_key: int = METADATA, version: int = 12) -> bool:
    """Whether a request ends the connection without an answer."""
    client.writer.write(b"\0\0\0\x0e" + bytes([0, api_key, 0, version]) + b"\0\0\0\x07\0\0\0\0\0\0")
    return await client.ended()


@pytest.mark.parametrize("api_key", [METADATA, 10, 16, 76, FETCH, 79, 42])
async def test_before_the_proof_nothing_is_answered(tmp_path: Path, api_key: int) -> None:
    """Without rules nobody may go on without credentials; a request is not even read."""
    secured = Secured(tmp_path, rules="")
    async with secured.running():
        client = await secured.port.connect()
        assert await lost(client, api_key, 1)
        client = await secured.port.connect()
        await client.ask(18, 3, client_software_name="c", client_software_version="1")
        await client.sasl("SCRAM-SHA-256", scram_first("worker"))
        assert await lost(client, api_key, 1)
        lines = await secured.told()
        assert {(line["outcome"], line["principal"]) for line in lines} == {
            ("refused", "User:anonymous")
        }


async def test_with_rules_they_say_what_nobody_may_do(secured: Secured) -> None:
    async with secured.running():
        client = await secured.port.connect()
        assert (await client.heartbeat(0, "orders")).error_code.value == 30


async def test_a_large_request_of_a_stranger_is_not_read(tmp_path: Path) -> None:
    secured = Secured(tmp_path, rules="")
    async with secured.running():
        client = await secured.port.connect()
        client.writer.write((STRANGER_BYTES_MAX + 1).to_bytes(4, "big"))
        assert await client.ended()
        client = await secured.connect("worker")
        large = "t" * STRANGER_BYTES_MAX
        assert (await client.heartbeat(0, large)).member_id == "m"


# -- how long it holds ----------------------------------------------------------------------------


async def test_a_session_lasts_as_long_as_the_credential(secured: Secured) -> None:
    async with secured.running():
        client = await secured.port.connect()
        answer = await client.sasl("OAUTHBEARER", bearer(signed()))
        assert answer.session_lifetime.total_seconds() == 600
        worker = await secured.connect("worker")
        await secured.port.joined(client=client)
        secured.clock.now_ms += 600_000
        assert await lost(client)
        assert (await worker.heartbeat(0, "orders", member="w")).error_code.value == OK


async def test_a_session_lasts_no_longer_than_it_may(secured: Secured) -> None:
    async with secured.running(connections_max_reauth_ms=60_000):
        client = await secured.port.connect()
        answer = await log_in(client, "worker", "SCRAM-SHA-512")
        assert answer.session_lifetime.total_seconds() == 60
        secured.clock.now_ms += 60_000
        assert await lost(client)


async def test_who_proves_it_again_goes_on(secured: Secured) -> None:
    """The member stays, by its new credential, and so do its records."""
    async with secured.running():
        client = await secured.port.connect()
        await client.sasl("OAUTHBEARER", bearer(signed()))
        await secured.port.joined(client=client)
        assert fetched(await client.fetch(0))[0].acquired == [(0, 5, 1)]
        now_s = secured.clock.now_ms // 1000
        secured.clock.now_ms += 599_000
        answer = await client.sasl("OAUTHBEARER", bearer(signed(exp=now_s + 1_200)))
        assert answer.session_lifetime.total_seconds() == 601
        assert (await client.heartbeat(1)).error_code.value == OK
        secured.clock.now_ms += 2_000
        secured.look()
        answer = await client.acknowledge(1, {0: [(0, 5, 1)]})
        assert answer.responses[0].partitions[0].error_code.value == OK


async def test_a_connection_stays_with_its_principal(secured: Secured) -> None:
    async with secured.running():
        client = await secured.joined("worker")
        answer = await client.sasl("PLAIN", plain("operator", secret_of("operator")))
        assert answer.error_code.value == FAILED
        assert "is User:worker's" in answer.error_message
        assert await client.ended()


async def test_who_fails_to_prove_it_again_is_out(secured: Secured) -> None:
    async with secured.running():
        client = await secured.joined("worker")
        answer = await client.sasl("PLAIN", plain("worker", "guess"))
        assert answer.error_code.value == FAILED
        assert await client.ended()


async def test_a_revoked_token_ends_the_member_and_its_records_go_back(secured: Secured) -> None:
    async with secured.running():
        gone, other = await secured.joined("worker"), await secured.connect("anna")
        assert fetched(await gone.fetch(0))[0].acquired == [(0, 5, 1)]
        await secured.port.joined("other", other)
        secured.revoke("worker")
        assert await lost(gone)
        assert fetched(await other.fetch(0, wait_ms=5_000))[0].acquired == [(0, 5, 2)]
        groups = secured.port.coordinator.groups
        assert list(groups["g"].sessions) == ["other"]


async def test_a_member_whose_connection_is_silent_ends_with_its_credential(
    secured: Secured,
) -> None:
    async with secured.running():
        client = await secured.port.connect()
        await client.sasl("OAUTHBEARER", bearer(signed()))
        await secured.port.joined(client=client)
        secured.clock.now_ms += 600_000
        secured.look()
        group = secured.port.coordinator.groups["g"]

        async def gone() -> bool:
            return not group.sessions

        await eventually_async(gone, 10)
