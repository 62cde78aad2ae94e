"""Certificates of a test: an authority of its own, made by OpenSSL's command line."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

_CONFIG = """\
[ca]
default_ca = here
[here]
dir = {folder}
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
default_days = 2
default_crl_days = 2
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
LOOPBACK = ("DNS:localhost", "IP:127.0.0.1")


class Pair(NamedTuple):
    """Files of PEM."""

    certificate: Path
    key: Path

    def together(self) -> Path:
        """Key and certificate in one file, as a Java keystore of PEM wants them."""
        path = self.certificate.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path

    def server(self, *, clients: Path | None = None) -> ssl.SSLContext:
        """For a server, which wants clients' certificates of the CA in `clients`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        return context


class Authority:
    """A CA with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self.certificate = self._folder / "ca.pem"
        self._key = self._folder / "ca.key"
        self._config = self._folder / "ca.cnf"
        self._config.write_text(_CONFIG.format(folder=self._folder))
        (self._folder / "index").touch()
        _openssl("req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}",
                 "-keyout", str(self._key), "-out", str(self.certificate))  # fmt: skip
        # Bundles of public CAs have such lines, in UTF-8.
        comment = "# Főtanúsítvány\n".encode()
        self.certificate.write_bytes(comment + self.certificate.read_bytes())

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = LOOPBACK,
        password: str = "",
        dates: tuple[str, str] | None = None,
    ) -> Pair:
        """A certificate, its key encrypted when there is a password; `dates` as YYMMDDHHMMSSZ."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request = self._folder / f"{name}.csr"
        _openssl("req", "-new", *_KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", str(pair.key),
                 "-addext", f"subjectAltName={','.join(hosts)}", "-out", str(request))  # fmt: skip
        period = () if dates is None else ("-startdate", dates[0], "-enddate", dates[1])
        if password:
            # Kafka on Java 17 reads no newer encryption of keys.
            locked = ("-v1", "PBE-SHA1-3DES", "-passout", f"pass:{password}")
            _openssl("pkcs8", "-topk8", *locked, "-in", str(pair.key), "-out", f"{pair.key}.locked")
            pair = pair._replace(key=Path(f"{pair.key}.locked"))
        self._ca("-in", str(request), "-out", str(pair.certificate), "-notext", *period)
        return pair

    def revoked(self, pair: Pair | None = None) -> Path:
        """The list of revoked certificates, with one more."""
        if pair is not None:
            self._ca("-revoke", str(pair.certificate))
        path = self._folder / "crl.pem"
        self._ca("-gencrl", "-out", str(path))
        return path

    def _ca(self, *arguments: str) -> None:
        mine = ("-config", self._config, "-cert", self.certificate, "-keyfile", self._key)
        _openssl("ca", "-batch", *map(str, mine), *arguments)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Live:
    """Files that a process watches, replaced as mounted secrets are: by new files."""

    def __init__(self, folder: Path, pair: Pair, authorities: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.certificate, self.key = folder / "live.pem", folder / "live.key"
        self.authorities = folder / "live.ca.pem"
        self.put(pair, authorities)

    def put(self, pair: Pair, authorities: Path | None = None) -> None:
        """Puts a pair, and perhaps authorities, in the place of those that are there."""
        replace_file(self.certificate, pair.certificate.read_bytes())
        replace_file(self.key, pair.key.read_bytes())
        if authorities is not None:
            replace_file(self.authorities, authorities.read_bytes())


def replace_file(path: Path, content: bytes) -> None:
    """Puts a new file in the place of another, at once and whole."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.rename(path)


def pem_of(pair: Pair) -> str:
    """The certificate of a pair, written as `shown_at` writes it."""
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pair.certificate.read_text()))


def shown_at(port: int, host: str = "127.0.0.1") -> str:
    """The certificate that a gRPC server shows to a new connection, as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), timeout=30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)
