"""How the command line says who it is: files, variables and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sharecoord_sdk._admin.route import read_admin_config
from sharecoord_sdk._tokens import read_answer
from sharecoord_sdk.admin import AuthorizationError

from sharecoord.config.sources import FREE_VARIABLES
from tests.unit.cli.support import FakeAdmin, run

VARIABLES = (
    "SHARECOORD_CA_FILE",
    "SHARECOORD_CERT_FILE",
    "SHARECOORD_COMMAND_CONFIG",
    "SHARECOORD_KEY_FILE",
    "SHARECOORD_KEY_PASSWORD",
    "SHARECOORD_TOKEN",
    "SHARECOORD_TOKEN_FILE",
)
NONE: dict[str, str | None] = dict.fromkeys(VARIABLES)


def settings_of(*flags: str, **env: str) -> dict[str, Any]:
    """What the client is made with."""
    admin = FakeAdmin(list_groups=[])
    done = run("groups", "--list", *flags, admin=admin, env={**NONE, **env})
    assert done.exit_code == 0, done.output
    admin.settings.pop("default.api.timeout.ms")
    return admin.settings


def refused(*flags: str, **env: str) -> str:
    """What is said when no client is made."""
    done = run("groups", "--list", *flags, admin=FakeAdmin(list_groups=[]), env={**NONE, **env})
    assert done.exit_code == 2
    return " ".join(done.output.split())


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "a.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\n")
    return str(path)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


def test_nothing_given_is_nothing_set() -> None:
    assert settings_of() == {"bootstrap.servers": "localhost:7070"}


def test_certificates_by_flags(pem: str) -> None:
    assert settings_of("--ca-file", pem, "--cert-file", pem, "--key-file", pem) == {
        "bootstrap.servers": "localhost:7070",
        "security.protocol": "ssl",
        "ssl.ca.location": pem,
        "ssl.certificate.location": pem,
        "ssl.key.location": pem,
    }


def test_certificates_by_variables(pem: str) -> None:
    found = settings_of(
        SHARECOORD_CA_FILE=pem,
        SHARECOORD_CERT_FILE=pem,
        SHARECOORD_KEY_FILE=pem,
        SHARECOORD_KEY_PASSWORD="s3cret",
    )
    assert found["security.protocol"] == "ssl"
    assert found["ssl.key.location"] == pem
    assert found["ssl.key.password"] == "s3cret"


def test_a_token_file_goes_over_tls_and_is_read_again(token_file: Path) -> None:
    found = settings_of("--token-file", str(token_file))
    assert found["security.protocol"] == "sasl_ssl"
    assert read_answer(found["oauth_cb"]("")).text == "s3cret"
    token_file.write_text("n3w")
    assert read_answer(found["oauth_cb"]("")).text == "n3w"
    assert "s3cret" not in repr(read_admin_config((found,), {}))
    token_file.unlink()
    with pytest.raises(OSError, match=r"--token-file .*No such file"):
        found["oauth_cb"]("")


def test_a_token_of_a_variable() -> None:
    found = settings_of(SHARECOORD_TOKEN="s3cret")
    assert found["security.protocol"] == "sasl_ssl"
    assert found["sasl.mechanisms"] == "OAUTHBEARER"
    assert read_answer(found["oauth_cb"]("")).text == "s3cret"
    read_admin_config((found,), {})


def test_a_token_goes_to_a_unix_socket_without_tls(token_file: Path, pem: str) -> None:
    flags = ("--bootstrap-server", "unix:/s", "--token-file", str(token_file))
    assert settings_of(*flags)["security.protocol"] == "sasl_plaintext"
    assert settings_of(*flags, "--ca-file", pem)["security.protocol"] == "sasl_ssl"


def test_flags_win_over_variables_and_those_over_the_file(
    tmp_path: Path, token_file: Path, pem: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=p\n"
        f"ssl.ca.location={pem}\n"
    )
    by_file = settings_of("--command-config", str(path))
    assert by_file["sasl.username"] == "u"
    assert settings_of(SHARECOORD_COMMAND_CONFIG=str(path)) == by_file
    by_variable = settings_of("--command-config", str(path), SHARECOORD_TOKEN="other")
    assert read_answer(by_variable["oauth_cb"]("")).text == "other"
    assert not {"sasl.username", "sasl.password", "sasl.mechanism"} & by_variable.keys()
    assert by_variable["ssl.ca.location"] == pem
    by_flag = settings_of("--token-file", str(token_file), SHARECOORD_TOKEN="other")
    assert read_answer(by_flag["oauth_cb"]("")).text == "s3cret"


def test_a_flag_of_tls_keeps_the_credentials_of_the_file(tmp_path: Path, pem: str) -> None:
    path = tmp_path / "client.conf"
    path.write_text("security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nssl.ca.pem=x\n")
    found = settings_of("--command-config", str(path), "--ca-file", pem)
    assert found["security.protocol"] == "sasl_ssl"
    assert found["sasl.mechanism"] == "PLAIN"
    assert "ssl.ca.pem" not in found


@pytest.mark.parametrize(
    "content", ["", "\n", "two words", "two\nlines", "s3cretä", "s3cret" * 10_000]
)
def test_what_is_no_token_is_named_and_not_shown(token_file: Path, content: str) -> None:
    token_file.write_text(content)
    said = refused("--token-file", str(token_file))
    assert "--token-file" in said
    assert "one token" in said
    assert "s3cret" not in said
    if content.strip():
        assert "SHARECOORD_TOKEN: it must hold one token" in refused(SHARECOORD_TOKEN=content)


def test_two_variables_with_a_token_contradict(token_file: Path) -> None:
    said = refused(SHARECOORD_TOKEN="x", SHARECOORD_TOKEN_FILE=str(token_file))
    assert "keep one of them" in said


@pytest.mark.parametrize("flag", ["--ca-file", "--cert-file", "--key-file", "--token-file"])
def test_a_file_that_is_not_there_is_named(flag: str) -> None:
    assert f"'{flag}'" in refused(flag, "/no/such/file")


@pytest.mark.parametrize("flag", ["--token", "--password", "--key-password"])
def test_no_flag_takes_a_secret(flag: str) -> None:
    assert "No such option" in refused(flag, "s3cret")


def test_the_coordinator_knows_these_variables() -> None:
    assert set(VARIABLES) <= FREE_VARIABLES.keys()


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("UNAUTHENTICATED", "SHARECOORD_TOKEN"),
        ("AUTHORIZATION_FAILED", "security.rules.file"),
    ],
)
def test_refusals_say_what_to_do(reason: str, said: str) -> None:
    admin = FakeAdmin(list_groups=AuthorizationError("who are you?", reason=reason))
    done = run("groups", "--list", admin=admin, env=NONE)
    assert done.exit_code == 1
    assert "who are you?" in done.output
    assert said in done.output
