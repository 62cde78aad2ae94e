"""The parts of security that a coordinator's settings ask for, put together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from sharecoord.config.process import ProcessConfig
from sharecoord.security.audit import AuditLog
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.files import FileWatch, WatchedFiles
from sharecoord.security.guard import Guard
from sharecoord.security.principals import unix_ms
from sharecoord.security.rules import SETTING as RULES
from sharecoord.security.rules import Rules, read_rules
from sharecoord.security.tokens import SETTING as TOKENS
from sharecoord.security.tokens import read_tokens


class Security:
    """Who gets in, and what they may do; made once, before anything listens."""

    def __init__(self, config: ProcessConfig, audit: AuditLog | None, coordinator_id: str) -> None:
        """Reads the files.

        Args:
            config: The settings of the process.
            audit: The audit trail, if there is one.
            coordinator_id: This coordinator.

        Raises:
            InvalidConfigError: A file can not be used; names the setting.
        """
        self.watch = FileWatch()
        self.loops: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {"files": self.watch.run}
        """What has to run all the time, by name."""
        self._remote_problem: Callable[[], tuple[str, str]] | None = None
        self.guard = Guard(_rules(config, self.watch), audit, coordinator_id=coordinator_id)
        security = config.security
        tokens = None
        if security.tokens_file:
            tokens = WatchedFiles({TOKENS: security.tokens_file}, read_tokens)
            self.watch.add(tokens)
        certificates = None
        if config.tls.client_ca_file:
            # cryptography takes memory: it is loaded where certificates are read.
            from sharecoord.security.certificates import CertificateNames

            certificates = CertificateNames(security.certificate_names)
        oidc = self._oidc(config) if security.oidc_issuer else None

        def authenticator() -> Authenticator:
            return Authenticator(
                tokens=tokens,
                oidc=oidc,
                certificates=certificates,
                # With rules it is they that say what `User:anonymous` may do.
                must_prove=config.knows_clients and not security.rules_file,
            )

        self.authenticator = authenticator()
        """Of the listener, which may be a Unix socket."""
        self.port_authenticator = authenticator()
        """Of the Kafka port: who connects to it has passed no socket file."""
        if config.knows_clients:
            self.guard.holds = self.authenticator.holds

    def problems(self) -> Iterable[tuple[str, str]]:
        """By settings: why what is there now is not in force; "" = it is."""
        found = list(self.watch.problems())
        if self._remote_problem is not None:
            found.append(self._remote_problem())
        return found

    def _oidc(self, config: ProcessConfig) -> Any:
        # As above: PyJWT loads it.
        from sharecoord.security.keys import SETTING
        from sharecoord.security.oidc import Oidc
        from sharecoord.security.remote_keys import RemoteKeys, keys_of

        security = config.security
        keys = keys_of(security.oidc_jwks, security.oidc_jwks_ca_file)
        if isinstance(keys, RemoteKeys):
            self.loops["oidc-keys"] = keys.run
            self._remote_problem = lambda: (SETTING, keys.problem)
        else:
            self.watch.add(keys.files)
        return Oidc(
            issuer=security.oidc_issuer,
            audience=security.oidc_audience,
            keys=keys,
            principal_claim=security.oidc_principal_claim,
            groups_claim=security.oidc_groups_claim,
            clock_skew_ms=security.oidc_clock_skew_ms,
            now_ms=unix_ms,
        )


def _rules(config: ProcessConfig, watch: FileWatch) -> WatchedFiles[Rules] | None:
    path = config.security.rules_file
    if not path:
        return None
    files = WatchedFiles({RULES: path}, _read_rules)
    watch.add(files)
    return files


def _read_rules(contents: Mapping[str, bytes]) -> Rules:
    return read_rules(contents[RULES])
