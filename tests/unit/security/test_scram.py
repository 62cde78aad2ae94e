"""SCRAM by the book: the examples of the RFCs, and what must not work."""

from __future__ import annotations

import base64

import pytest

from sharecoord.errors import UnauthenticatedError
from sharecoord.security.scram import (
    HASHES,
    ScramServer,
    Verifier,
    make_verifier,
    read_verifier,
)
from tests.sasl import NONCE as CLIENT_NONCE
from tests.sasl import scram_final

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()


def server(
    name: str = "user", secret: str = "pencil", mechanism: str = "SCRAM-SHA-256"
) -> ScramServer[str]:
    kept = {name: [(make_verifier(mechanism, secret, SALT), name)]}
    return ScramServer(mechanism, lambda who: kept.get(who, []), fake_key=b"k", nonce=SERVER_NONCE)


def test_the_example_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.first(FIRST) == (
        f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    assert exchange.last(FINAL) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


@pytest.mark.parametrize("mechanism", HASHES)
def test_who_has_the_secret_is_known(mechanism: str) -> None:
    exchange = server(mechanism=mechanism)
    answer = exchange.first(FIRST)
    assert exchange.last(scram_final(FIRST, answer, "pencil", mechanism))[1] == "user"
    exchange = server(mechanism=mechanism)
    answer = exchange.first(FIRST)
    with pytest.raises(UnauthenticatedError, match="not good here"):
        exchange.last(scram_final(FIRST, answer, "pencil2", mechanism))


def test_of_two_secrets_of_a_name_each_is_good() -> None:
    for secret in ("old", "new"):
        both = [(make_verifier("SCRAM-SHA-256", each, SALT), each) for each in ("old", "new")]
        exchange = ScramServer("SCRAM-SHA-256", lambda _, both=both: both, fake_key=b"k")
        answer = exchange.first(FIRST)
        assert exchange.last(scram_final(FIRST, answer, secret, "SCRAM-SHA-256"))[1] == secret


def test_who_is_not_there_is_asked_as_everybody_is() -> None:
    answers = {server("other").first(FIRST) for _ in range(2)}
    assert len(answers) == 1
    (answer,) = answers
    assert answer.startswith(b"r=" + CLIENT_NONCE.encode())
    assert answer.endswith(b",i=4096")
    exchange = server("other")
    exchange.first(FIRST)
    with pytest.raises(UnauthenticatedError, match="not good here"):
        exchange.last(scram_final(FIRST, answer, "pencil", "SCRAM-SHA-256"))


def test_a_name_with_a_comma_and_an_equals_sign() -> None:
    first = b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc,tokenauth=true".replace(b",tokenauth=true", b",t=x")
    exchange = server("a,b=c")
    answer = exchange.first(first)
    assert b"s=W22Z" in answer


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=2Der,r=abc",
        b"n,,n=user,r=a,b",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(UnauthenticatedError):
        server().first(first)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"c=biws", b"c=eSws", id="another header"),
        pytest.param(b"hNlF$k0", b"hNlF$k1", id="another nonce"),
        pytest.param(b"p=dHzb", b"p=eHzb", id="another proof"),
        pytest.param(b"p=dHzbZapW", b"p=", id="a short proof"),
        pytest.param(b",p=", b",q=", id="no proof"),
        pytest.param(b"p=dHzb", b"p=d", id="no base64"),
    ],
)
def test_a_last_message_that_is_not_the_right_one_is_refused(old: bytes, new: bytes) -> None:
    exchange = server()
    exchange.first(FIRST)
    assert FINAL.replace(old, new) != FINAL
    with pytest.raises(UnauthenticatedError):
        exchange.last(FINAL.replace(old, new))


def test_a_proof_is_good_once() -> None:
    """Each exchange has a nonce of its own."""
    kept = [(make_verifier("SCRAM-SHA-256", "pencil", SALT), "user")]
    exchanges = [ScramServer("SCRAM-SHA-256", lambda _: kept, fake_key=b"k") for _ in range(2)]
    answers = [each.first(FIRST) for each in exchanges]
    proof = scram_final(FIRST, answers[0], "pencil", "SCRAM-SHA-256")
    assert exchanges[0].last(proof)[1] == "user"
    with pytest.raises(UnauthenticatedError):
        exchanges[1].last(proof)


@pytest.mark.parametrize("mechanism", HASHES)
def test_what_is_kept_is_read_as_it_was_written(mechanism: str) -> None:
    made = make_verifier(mechanism, "pencil", SALT)
    assert read_verifier(str(made)) == made
    for secret in ("pencil", str(made).split("$")[-1]):
        assert secret not in repr(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secret", "be MECHANISM"),
        ("SCRAM-SHA-1$4096:YQ==$YQ==:YQ==", "of SCRAM-SHA-256 or"),
        ("SCRAM-SHA-256$1:YQ==$YQ==:YQ==", "4096 to 1000000"),
        ("SCRAM-SHA-256$4096:YQ==$YQ==:YQ==", "keys of 32 bytes"),
        ("SCRAM-SHA-256$4096:Y$YQ==:YQ==", "base64"),
    ],
)
def test_what_nobody_wrote_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_verifier(text)


def test_the_text_of_a_verifier() -> None:
    text = (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    made: Verifier = make_verifier("SCRAM-SHA-256", "pencil", SALT)
    assert str(made) == text
