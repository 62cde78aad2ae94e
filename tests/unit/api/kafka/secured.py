"""A Kafka port with tokens, JSON Web Tokens, rules and an audit trail."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from sharecoord.config.process_settings import KafkaPortConfig
from sharecoord.security.audit import AuditLog
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.files import WatchedFiles
from sharecoord.security.guard import Guard
from sharecoord.security.rules import SETTING as RULES
from sharecoord.security.rules import Rules, read_rules
from sharecoord.security.scram import HASHES, make_verifier
from sharecoord.security.tokens import SETTING as TOKENS
from sharecoord.security.tokens import read_tokens
from tests.sasl import scram_final, scram_first
from tests.unit.api.kafka.client import Client, Port, port_of
from tests.unit.runtime.worlds import world_with
from tests.unit.security.support import RSA_KEY, Clock, jwk
from tests.unit.security.test_oidc import FixedKeys, oidc_of

NAMES = ("worker", "stranger", "operator", "anna")
BASE = """
rules:
  - allow: [consume]
    principals: ["User:worker", "User:anna"]
    resources: ["group:g", "topic:orders"]
  - allow: [consume]
    principals: ["User:stranger"]
    resources: ["group:others", "topic:orders"]
  - allow: [describe, delete]
    principals: ["User:operator"]
    resources: ["group:g*"]
"""


def secret_of(name: str) -> str:
    """The token of a name."""
    return f"sct_{name}"


class Lines:
    """A sink of audit lines that keeps them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, lines: Sequence[bytes]) -> int:
        """Called by the trail."""
        self.lines += map(json.loads, lines)
        return len(lines)

    def close(self) -> None:
        """Nothing is open."""


class Secured:
    """The files and the clock of such a port."""

    def __init__(self, folder: Path, rules: str = BASE) -> None:
        self.clock = Clock()
        self._rules_file, self._tokens_file = folder / "rules.yaml", folder / "tokens.yaml"
        self._rules_file.write_text(rules)
        self._write_tokens(NAMES)
        self.tokens = WatchedFiles({TOKENS: str(self._tokens_file)}, read_tokens)
        self.rules: WatchedFiles[Rules] | None = None
        if rules:
            self.rules = WatchedFiles(
                {RULES: str(self._rules_file)}, lambda contents: read_rules(contents[RULES])
            )
        self.trail = Lines()
        self.audit = AuditLog(self.trail, queue_max_bytes=1 << 20)
        self.authenticator = Authenticator(
            tokens=self.tokens,
            oidc=oidc_of(FixedKeys(jwk(RSA_KEY)), self.clock, clock_skew_ms=0),
            must_prove=not rules,
            now_ms=self.clock,
            sleep=self.clock.sleep,
        )
        self.port: Port

    def _write_tokens(self, names: Sequence[str]) -> None:
        entries = [
            {
                "name": name,
                "sha256": hashlib.sha256(secret_of(name).encode()).hexdigest(),
                "scram": [str(make_verifier(each, secret_of(name), b"salt")) for each in HASHES],
            }
            for name in names
        ]
        self._tokens_file.write_text(yaml.safe_dump(entries))

    def _guard(self, name: str) -> Guard:
        return Guard(
            self.rules,
            self.audit,
            coordinator_id=name,
            now_ms=self.clock,
            now_s=self.clock.monotonic_s,
        )

    @asynccontextmanager
    async def running(
        self,
        records: int = 6,
        now_s: Callable[[], float] = time.monotonic,
        **limits: Any,
    ) -> AsyncIterator[Secured]:
        """Serves; `limits` are those of the port."""
        world = world_with(records)
        world.make_guard = self._guard
        config = KafkaPortConfig(**limits)
        options = {"authenticator": self.authenticator, "config": config, "now_s": now_s}
        async with port_of(world, **options) as self.port:
            self.port.coordinator.context.guard.holds = self.authenticator.holds
            yield self
        await self.audit.close()

    def change_rules(self, text: str) -> None:
        """Writes other rules, and lets them be looked at as each second."""
        assert self.rules is not None
        self._rules_file.write_text(text)
        assert self.rules.look()
        self.look()

    def revoke(self, name: str) -> None:
        """Takes a token out of the file, and lets that be looked at as each second."""
        self._write_tokens([each for each in NAMES if each != name])
        assert self.tokens.look()
        self.look()

    def look(self) -> None:
        """Looks at the members, as each second."""
        self.port.coordinator.groups.admission.look()

    async def connect(self, name: str, mechanism: str = "SCRAM-SHA-256") -> Client:
        """A connection of somebody who has proven to be this one."""
        client = await self.port.connect()
        answer = await log_in(client, name, mechanism)
        assert answer.error_code.value == 0, answer
        return client

    async def joined(self, name: str, member: str = "m") -> Client:
        """A connection of a member of `g`."""
        return await self.port.joined(member, await self.connect(name))

    async def told(self) -> list[dict[str, Any]]:
        """The lines of the audit trail."""
        await self.audit.close()
        return self.trail.lines


async def log_in(client: Client, name: str, mechanism: str, secret: str = "") -> Any:
    """An exchange of SCRAM; its last answer."""
    first = scram_first(name)
    answer = await client.sasl(mechanism, first)
    assert answer.error_code.value == 0, answer
    secret = secret or secret_of(name)
    return await client.authenticate(scram_final(first, answer.auth_bytes, secret, mechanism))
