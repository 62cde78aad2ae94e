"""Files of Kafka client keys, and which keys are ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.config.kafka_keys import (
    LIBRDKAFKA_KEYS,
    OWNED_KEYS,
    check_kafka_key,
    is_secret_kafka_key,
    kafka_key_of_variable,
    unknown_kafka_key,
)
from sharecoord.config.kafka_properties import KafkaProperties, read_kafka_config
from sharecoord.errors import InvalidConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def _read(tmp_path: Path, text: str, name: str = "client.properties") -> KafkaProperties:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_kafka_config(path)


def test_a_java_file_for_sasl_over_tls(tmp_path: Path) -> None:
    result = _read(
        tmp_path,
        "bootstrap.servers=a:1,b:2\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="u 1" \\\n  password="p\\\\"\\u00e4";\n'
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.location=/etc/ca.pem\n"
        "ssl.endpoint.identification.algorithm=\n"
        "key.deserializer=org.apache.kafka.X\n",
    )
    assert result.properties == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u 1",
        "sasl.password": 'p"ä',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert result.lines["sasl.password"] == 4
    assert result.lines["ssl.ca.location"] == 8
    (warning,) = result.warnings
    assert ":10: key.deserializer is left out" in warning


def test_plain_with_its_mechanism(tmp_path: Path) -> None:
    result = _read(
        tmp_path,
        f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username='u' password='p';\n",
        "admin.config",
    )
    assert result.properties["sasl.password"] == "p"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["sasl.mechanism=PLAIN", f"sasl.jaas.config={PLAIN} required;"], "has no username="),
        (
            ["sasl.mechanism=PLAIN", f"sasl.jaas.config={PLAIN} required username='u';"],
            "has no password=",
        ),
        (
            [f"sasl.jaas.config={SCRAM} required username='u' password='secret';"],
            "Set sasl.mechanism=SCRAM-SHA-256 or SCRAM-SHA-512",
        ),
        (
            [
                "sasl.mechanism=PLAIN",
                f"sasl.jaas.config={SCRAM} required username='u' password='secret';",
            ],
            'but sasl.mechanism is "PLAIN"',
        ),
        (
            [
                "sasl.mechanism=SCRAM-SHA-256",
                f"sasl.jaas.config={SCRAM} required username='u' password='secret' tokenauth=true;",
            ],
            "delegation tokens",
        ),
        (["sasl.jaas.config=a.b.Krb5LoginModule required x='secret';"], "Krb5LoginModule"),
        (["sasl.jaas.config=broken"], "cannot be read: it must begin"),
        (
            [
                "sasl.password=secret",
                f"sasl.jaas.config={PLAIN} required username='u' password='secret';",
            ],
            "and sasl.password are both set",
        ),
    ],
)
def test_bad_jaas_names_file_and_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        _read(tmp_path, "\n".join(lines))
    assert problem in caught.value.message
    assert f"client.properties:{len(lines)}: sasl.jaas.config " in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["ssl.truststore.location=/a b/t.jks", "ssl.truststore.password=secret"],
            "keytool -list -rfc -keystore '/a b/t.jks' > ca.pem",
        ),
        (
            ["ssl.truststore.type=PKCS12", "ssl.truststore.location=t.store"],
            "openssl pkcs12 -in t.store -nokeys -out ca.pem",
        ),
        (["ssl.truststore.location=t.p12"], "openssl pkcs12 -in t.p12 -nokeys -out ca.pem"),
        (
            ["ssl.keystore.type=JKS", "ssl.keystore.location=k.store"],
            "keytool -importkeystore -srckeystore k.store -destkeystore client.p12",
        ),
    ],
)
def test_java_stores_are_refused_with_the_command(
    tmp_path: Path, lines: list[str], expected: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        _read(tmp_path, "\n".join(lines))
    assert expected in caught.value.message
    assert "client.properties:" in caught.value.message
    assert "secret" not in caught.value.message


def test_both_java_stores_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        _read(tmp_path, "ssl.truststore.location=t.jks\nssl.keystore.location=k.jks\n")
    assert caught.value.message.count("keytool") == 2
    assert "ssl.ca.location=ca.pem and ssl.keystore.location=client.p12" in caught.value.message


def test_pem_stores_are_translated(tmp_path: Path) -> None:
    result = _read(
        tmp_path,
        "ssl.keystore.type=PEM\nssl.keystore.location=both.pem\nssl.key.password=k\n"
        "ssl.keystore.password=x\nssl.truststore.type=PEM\nssl.truststore.certificates=CERT\n",
    )
    assert result.properties == {
        "ssl.key.location": "both.pem",
        "ssl.certificate.location": "both.pem",
        "ssl.key.password": "k",
        "ssl.ca.pem": "CERT",
    }
    assert ["ssl.keystore.password is left out" in line for line in result.warnings] == [True]


def test_inline_pem_is_translated(tmp_path: Path) -> None:
    result = _read(
        tmp_path,
        "ssl.keystore.type=PEM\nssl.keystore.certificate.chain=A\\nB\nssl.keystore.key=K\n",
    )
    assert result.properties == {"ssl.certificate.pem": "A\nB", "ssl.key.pem": "K"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.properties", "ssl.keystore.type=PKCS12\nssl.keystore.location=k\n"),
        ("c.properties", "ssl.keystore.location=k.p12\n"),
        ("c.conf", "ssl.keystore.location=k\n"),
    ],
)
def test_a_pkcs12_keystore_is_librdkafkas_own(tmp_path: Path, name: str, text: str) -> None:
    properties = _read(tmp_path, text, name).properties
    assert list(properties) == ["ssl.keystore.location"]


def test_a_truststore_beside_librdkafkas_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.ca\.location are both set"):
        _read(
            tmp_path,
            "ssl.truststore.type=PEM\nssl.truststore.location=a\nssl.ca.location=b\n",
        )


def test_a_librdkafka_file_has_no_escapes(tmp_path: Path) -> None:
    result = _read(tmp_path, "# c\nsasl.password = a\\tb=c \nlog_level=3\n", "client.conf")
    assert result.properties == {"sasl.password": "a\\tb=c", "log_level": "3"}
    assert result.warnings == ()


def test_a_backslash_in_a_file_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"kafka:2: .*\*\.properties.*\*\.conf") as caught:
        _read(tmp_path, "a=b\nsasl.password=sec\\ret\n", "kafka")
    assert "sec" not in caught.value.message


def test_a_java_key_makes_a_file_javas(tmp_path: Path) -> None:
    text = f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username=u \\\npassword=p;"
    assert _read(tmp_path, text, "kafka").properties["sasl.username"] == "u"


@pytest.mark.parametrize(
    "key",
    ["config.providers", "sasl.login.callback.handler.class", "ssl.engine.factory.class"],
)
def test_java_classes_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidConfigError, match=f":1: {key} needs a Java program"):
        _read(tmp_path, f"{key}=a.b.C")


def test_keys_that_are_ours_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r':2: the Kafka key "group\.id".*consumer group'):
        _read(tmp_path, "client.id=x\ngroup.id=g\n")


def test_duplicates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r":3: \"a\" is already set in line 1"):
        _read(tmp_path, "a=1\nb=2\na=3\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"no\.conf.*No such file.*--kafka-config"):
        read_kafka_config(tmp_path / "no.conf")


def test_latin_1_is_read_as_java_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_bytes(b"sasl.password=\xe4")
    assert read_kafka_config(path).properties["sasl.password"] == "ä"


def test_an_unknown_key_names_the_nearest() -> None:
    message = unknown_kafka_key("boostrap.servers").message
    assert 'Did you mean "bootstrap.servers"?' in message


def test_an_unknown_key_is_never_likened_to_one_that_is_ours() -> None:
    message = unknown_kafka_key("auto.ofset.reset").message
    assert "auto.offset.reset" not in message
    assert "CONFIGURATION.md" in unknown_kafka_key("zzzzzzzzzzzzzzz").message


@pytest.mark.parametrize("key", [*sorted(OWNED_KEYS), "stats_cb"])
def test_owned_keys_cannot_be_set(key: str) -> None:
    with pytest.raises(InvalidConfigError, match=f'^x:1: the Kafka key "{key}" cannot be set: '):
        check_kafka_key(key, where="x:1")


@pytest.mark.parametrize("key", ["client.id", "sasl.password", "a.key.of.tomorrow"])
def test_other_keys_pass(key: str) -> None:
    check_kafka_key(key)


def test_every_key_can_be_named_by_a_variable() -> None:
    for key in LIBRDKAFKA_KEYS:
        assert kafka_key_of_variable(key.upper().replace(".", "_")) == key


def test_secret_keys_are_known() -> None:
    secret = {key for key in LIBRDKAFKA_KEYS if is_secret_kafka_key(key)}
    assert secret == {
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.config",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
