"""Certificates: whom a client's certificate names, and when a certificate ends.

TLS has verified a client's certificate before anything here sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from sharecoord.config.process_settings import CertificateName
from sharecoord.errors import UnauthenticatedError
from sharecoord.security.principals import USER, Identity, Mechanism, Principal, user_problem

SETTING: Final = "security.certificate.names"

IDENTITIES_KEPT: Final = 4_096
"""Identities that are kept by their certificates, the latest used: some 8 MB. A call of gRPC shows
its connection's certificate again, and to read one takes longer than all else of a small call."""


class CertificateNames:
    """Makes identities of clients' certificates."""

    def __init__(self, names: Sequence[CertificateName]) -> None:
        """Takes the value of `security.certificate.names`: which names count, in this order."""
        self._names = tuple(names)
        self.identity_of = lru_cache(IDENTITIES_KEPT)(self._identity_of)
        """The identity that a certificate, as PEM, names.

        Raises:
            UnauthenticatedError: The certificate has none of the wanted names, or one that nobody
                can have, or can not be read.
        """

    def _identity_of(self, pem: bytes) -> Identity:
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            name = next(_names_in(certificate, self._names), None)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            raise UnauthenticatedError(
                "the client's certificate can not be read; ask for another one"
            ) from error
        if name is None:
            raise UnauthenticatedError(
                "the client's certificate names nobody: it has none of "
                f"{', '.join(self._names)}. Ask for a certificate that has one, or set {SETTING} "
                "of the coordinator to what certificates have"
            )
        problem = user_problem(name)
        if problem:
            raise UnauthenticatedError(
                f"the name in the client's certificate {problem} ({SETTING}); ask for another "
                "certificate"
            )
        ends_ms = _unix_ms(certificate.not_valid_after_utc)
        return Identity(Principal(USER + name), Mechanism.CERTIFICATE, ends_ms)


def _names_in(certificate: x509.Certificate, wanted: Iterable[CertificateName]) -> Iterator[str]:
    """The names of a certificate, in the order of the wanted kinds, then as they stand there."""
    try:
        kind = x509.SubjectAlternativeName
        alternative = certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        alternative = x509.SubjectAlternativeName([])
    for each in wanted:
        if each is CertificateName.COMMON_NAME:
            for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
                yield str(attribute.value)
        else:
            yield from alternative.get_values_for_type(_KINDS[each])


_KINDS: Final[
    dict[CertificateName, type[x509.UniformResourceIdentifier | x509.DNSName | x509.RFC822Name]]
] = {
    CertificateName.URI: x509.UniformResourceIdentifier,
    CertificateName.DNS: x509.DNSName,
    CertificateName.EMAIL: x509.RFC822Name,
}


def _unix_ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
