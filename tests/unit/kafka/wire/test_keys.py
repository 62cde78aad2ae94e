"""Every setting of librdkafka about connections and reading has its place in one table."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
import pytest

from sharecoord.config.kafka_keys import LIBRDKAFKA_KEYS, OWNED_KEYS
from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.wire.keys import BEYOND, HARMLESS, HONOURED, READING, beyond, flag, number
from sharecoord.kafka.wire.security import security_of

SASL_SSL = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}
BEARER = {**SASL_SSL, "sasl.mechanism": "OAUTHBEARER"}


def librdkafka_s_keys() -> dict[str, str]:
    """What librdkafka itself says: key → C (consumer), P (producer) or * (both)."""
    libraries = Path(confluent_kafka.__file__).parent.with_suffix(".libs")
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka*"))))
    process = ctypes.CDLL(None)
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    process.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(process.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.rd_kafka_conf_properties_show(stream)
    process.fclose(stream)
    assert text.value is not None
    rows = (line.split("|") for line in text.value.decode().splitlines() if line.count("|") > 4)
    return {
        row[0].strip(): row[1].strip()
        for row in rows
        if not row[0].startswith(("Property", "--")) and "see dedicated API" not in row[-1]
    }


def test_every_key_of_librdkafka_is_in_exactly_one_table() -> None:
    asked = {key for key, kind in librdkafka_s_keys().items() if kind in ("*", "C")}
    asked |= {key for key in LIBRDKAFKA_KEYS if key.startswith(("ssl.", "sasl."))}
    owned = {key for key in OWNED_KEYS if not key.startswith(("ssl.", "sasl."))}
    tables = (HONOURED, READING, set(HARMLESS), set(BEYOND))
    callbacks = {key for key in asked if key.endswith("_cb")}
    found = {key: sum(key in table for table in tables) for key in asked - owned - callbacks}
    assert {key for key, count in found.items() if count != 1} == {"enabled_events"}


def test_the_tables_have_no_other_keys() -> None:
    known = librdkafka_s_keys().keys() | LIBRDKAFKA_KEYS
    assert (HONOURED | READING | HARMLESS.keys() | BEYOND.keys()) - known == set()


def test_every_harmless_key_has_a_reason() -> None:
    assert all(len(why) > 10 for why in HARMLESS.values())


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, None),
        (SASL_SSL, None),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism=GSSAPI"),
        ({**SASL_SSL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI"),
        ({**SASL_SSL, "sasl.mechanism": "AWS_MSK_IAM"}, "sasl.mechanism=AWS_MSK_IAM"),
        ({**SASL_SSL, "ssl.keystore.location": "a.p12"}, "ssl.keystore.location=a.p12"),
        ({**SASL_SSL, "ssl.providers": "legacy"}, "ssl.providers=legacy"),
        ({**SASL_SSL, "ssl.engine.location": "e.so"}, "ssl.engine.location=e.so"),
        ({**SASL_SSL, "ssl.engine.location": ""}, None),
        ({**SASL_SSL, "ssl.invented.tomorrow": "1"}, "ssl.invented.tomorrow=1"),
        ({"ssl.keystore.location": "a.p12"}, None),
        ({**SASL_SSL, "sasl.oauthbearer.assertion.file": "a"}, None),
        ({**BEARER, "sasl.oauthbearer.assertion.file": "a"}, "sasl.oauthbearer.assertion.file=a"),
        (
            {**BEARER, "sasl.oauthbearer.assertion.private.key.pem": "secret"},
            "sasl.oauthbearer.assertion.private.key.pem",
        ),
        ({**BEARER, "sasl.oauthbearer.grant.type": "client_credentials"}, None),
        (
            {**BEARER, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
            "sasl.oauthbearer.metadata.authentication.type=azure_imds",
        ),
        ({"api.version.request": True}, None),
        ({"api.version.request": "false"}, "api.version.request=false"),
        ({"test.mock.num.brokers": 3}, "test.mock.num.brokers=3"),
        ({"client.dns.lookup": "use_all_dns_ips"}, None),
        ({"plugin.library.paths": "x"}, "plugin.library.paths=x"),
        ({"batch.size": 1, "linger.ms": 5}, None),
    ],
)
def test_what_is_beyond(settings: dict[str, str | int | bool], found: str | None) -> None:
    assert beyond(settings) == found


def test_what_can_not_be_used_is_named() -> None:
    for settings, said in (
        ({"security.protocol": "tls"}, "kafka.security.protocol is 'tls'"),
        ({**SASL_SSL, "sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism is 'GSSAPI'"),
        (SASL_SSL, "kafka.sasl.username is not set"),
        ({**SASL_SSL, "sasl.username": "a"}, "kafka.sasl.password is not set"),
        ({**SASL_SSL, "sasl.username": "a\0b"}, "kafka.sasl.username has a zero byte"),
        (BEARER, "nothing gives tokens"),
        ({**BEARER, "sasl.oauthbearer.method": "saml"}, "it is default or oidc"),
        ({**BEARER, "sasl.oauthbearer.method": "oidc"}, "token.endpoint.url is not set"),
    ):
        with pytest.raises(InvalidConfigError, match=said):
            security_of(settings)


def test_flags_and_numbers_are_read_as_librdkafka_reads_them() -> None:
    assert flag({"a": "T"}, "a", default=False)
    assert not flag({"a": 0}, "a", default=True)
    assert flag({}, "a", default=True)
    assert number({"a": " 7 "}, "a", default=1, bounds=(0, 9)) == 7
