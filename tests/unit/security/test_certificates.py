"""Principals of clients' certificates, and when certificates end."""

from __future__ import annotations

import unicodedata
from ipaddress import ip_address

import pytest
from cryptography import x509

from sharecoord.config.process_settings import CertificateName
from sharecoord.errors import UnauthenticatedError
from sharecoord.security.certificates import CertificateNames
from sharecoord.security.principals import Mechanism
from tests.unit.security.support import NOW_MS, certificate

URI, DNS, EMAIL, COMMON_NAME = CertificateName
SPIFFE = x509.UniformResourceIdentifier("spiffe://prod.example/ns/shop/sa/orders")
HOST = x509.DNSName("orders.example")
MAIL = x509.RFC822Name("orders@example.org")


def named(pem: bytes, *names: CertificateName) -> str:
    return CertificateNames(names or (URI, DNS, EMAIL)).identity_of(pem).principal.name


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        ((HOST, MAIL, SPIFFE), (URI, DNS, EMAIL), "spiffe://prod.example/ns/shop/sa/orders"),
        ((HOST, MAIL, SPIFFE), (EMAIL, URI), "orders@example.org"),
        ((HOST, MAIL), (URI, DNS), "orders.example"),
        ((HOST, MAIL, SPIFFE), (COMMON_NAME, URI), "Orders Worker"),
        ((HOST, x509.DNSName("second.example")), (DNS,), "orders.example"),
        ((), (URI, COMMON_NAME), "Orders Worker"),
    ],
)
def test_the_first_wanted_name_is_the_principal(
    names: tuple[x509.GeneralName, ...], wanted: tuple[CertificateName, ...], found: str
) -> None:
    assert named(certificate(*names, common_name="Orders Worker"), *wanted) == f"User:{found}"


def test_an_identity_ends_with_its_certificate() -> None:
    identity = CertificateNames((URI,)).identity_of(certificate(SPIFFE))
    assert identity.mechanism is Mechanism.CERTIFICATE
    assert identity.ends_ms == NOW_MS + 30 * 86_400_000


@pytest.mark.parametrize("names", [(), (x509.IPAddress(ip_address("::1")),)])
def test_a_certificate_without_a_wanted_name_is_refused(names: tuple[x509.GeneralName]) -> None:
    with pytest.raises(UnauthenticatedError) as refused:
        named(certificate(*names, common_name="Orders Worker"), URI, DNS)
    assert "none of uri, dns" in refused.value.message
    assert "security.certificate.names" in refused.value.message


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "a\u202eb", "a\u200bb", "Anonymous"])
def test_a_name_that_nobody_can_have_is_refused(name: str) -> None:
    with pytest.raises(UnauthenticatedError, match="the name in the client's certificate"):
        named(certificate(common_name=name), COMMON_NAME)


def test_a_bad_name_is_not_replaced_by_the_next_one() -> None:
    pem = certificate(HOST, x509.UniformResourceIdentifier("spiffe://" + "x" * 2_048))
    with pytest.raises(UnauthenticatedError, match="more than 2048 characters"):
        named(pem, URI, DNS)
    assert named(pem, DNS, URI) == "User:orders.example"


def test_names_that_look_alike_are_two() -> None:
    composed = unicodedata.normalize("NFC", "zoé")
    cyrillic = "z\u043e\u00e9"
    spelled = [composed, unicodedata.normalize("NFD", composed), composed.upper(), cyrillic]
    found = {named(certificate(common_name=each), COMMON_NAME) for each in spelled}
    assert len(found) == len(spelled)


@pytest.mark.parametrize(
    "pem", [b"", b"no certificate", certificate(SPIFFE).replace(b"M", b"N", 3), b"\xff" * 100]
)
def test_what_is_no_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(UnauthenticatedError, match="can not be read"):
        named(pem)


def test_a_certificate_is_read_once() -> None:
    names = CertificateNames((URI,))
    first = names.identity_of(certificate(SPIFFE))
    pem = certificate(SPIFFE)
    assert names.identity_of(pem) is names.identity_of(bytes(bytearray(pem)))
    assert names.identity_of(pem) == first
