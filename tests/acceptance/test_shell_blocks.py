"""What the pages tell to type is typed here, page by page, in front of one coordinator.

A block that is not run says why in the page (`<!-- not run: … -->`), and
`tests/architecture/test_pages.py` checks the reason. Names of topics and groups get an ending of
their own, and addresses and folders are those of the test; else a block is run as it stands.
`pip` and `make` are left out, and so are Kafka's own scripts unless they go to the Kafka port of a
coordinator (`KAFKA_PORT`): what they name is checked there, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import jwt
import pytest
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess, clean_environment
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Record, Topics
from tests.acceptance.test_guides import coordinator, left_by_a_consumer_group
from tests.acceptance.typed import BACKGROUND
from tests.pages import ROOT, Block, blocks_of, name_of, pages, words_of
from tests.support import KafkaUnderTest, eventually, unique_name
from tests.unit.security.support import EC_KEY, jwk, key_set

__all__ = ["coordinator"]

BLOCK_TIMEOUT_S: Final = 240
LEFT_OUT: Final = ("pip", "make")
KAFKA_PORT: Final = "localhost:9192"
"""Where pages have the Kafka port."""

SCRIPTS: Final = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-share-groups.sh": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
}
"""Kafka's scripts, of `maven.DEFAULT_VERSION`."""

PRELUDE: Final = f"""
set -euo pipefail
sharecoord() {{
  if [ "$BASHPID" = $$ ]; then {sys.executable} -m tests.acceptance.typed "$@"; return; fi
  {BACKGROUND}=yes exec {sys.executable} -m tests.acceptance.typed "$@"
}}
python() {{ {sys.executable} "$@"; }}
refused() {{ if "$@"; then return 1; else [ $? != 2 ]; fi; }}
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
"""
"""What a block begins with. What it puts into the background ends with it. `! command` becomes
`refused command`: it has to fail, and not for its usage (2); bash would go on in any case."""

WITHOUT_SHARE_GROUPS: Final = "3.9.1"
"""What most users have."""

RECORDS: Final = 5_000
"""More than the offsets that pages name."""


def is_left_out(words: list[str]) -> bool:
    """Whether a command is not run."""
    is_kafkas = words[0].startswith("kafka-") and KAFKA_PORT not in words
    return is_kafkas or words[0].startswith(LEFT_OUT)


def runs(block: Block) -> bool:
    """Whether something of the block is to be run."""
    if not block.is_shell or block.reason:
        return False
    return not all(map(is_left_out, block.commands))


def scripts() -> str:
    """Kafka's scripts as functions of a shell."""
    java = f"{find_java()} -XX:TieredStopAtLevel=1 -Xmx256m -cp '{kafka_libs()}/*'"
    return "".join(f'{name}() {{ {java} {main} "$@"; }}\n' for name, main in SCRIPTS.items())


PAGES: Final = [page for page in pages() if any(map(runs, blocks_of(page)))]


@dataclass
class Desk:
    """Where a page's blocks are typed.

    Attributes:
        names: What is written in another way here: topics, groups, places.
        before: By what a block begins with: what has to happen before it.
    """

    coordinator: CoordinatorProcess
    servers: str
    topics: Topics
    folder: Path
    stack: ExitStack
    names: dict[str, str] = field(default_factory=dict)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)

    def own(self, *names: str) -> list[str]:
        """Names with an ending of their own."""
        self.names |= {name: unique_name(name) for name in names}
        return [self.names[name] for name in names]

    def topic(self, name: str, *, records: int = 0, partitions: int = 1) -> str:
        """A topic of a page, with records in its first partition."""
        (made,) = self.own(name)
        self.topics.create(made, partitions=partitions)
        self.stack.callback(lambda: self.topics.delete(*{made} & set(self.topics.names())))
        if records:
            self.topics.produce(
                made, [Record(b"k", b"%d" % n) for n in range(records)], partition=0
            )
        return made

    def configure(self, group: str, **settings: str) -> None:
        """Sets a group's settings; keyword `a_b` is `a.b`."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        with AdminClient({"bootstrap.servers": self.coordinator.address}) as admin:
            admin.alter_group_configs(group, named)

    def member(self, group: str, topic: str) -> ShareConsumer:
        """A consumer that has joined and got its first record."""
        self.configure(group, share_auto_offset_reset="earliest")
        config = {"bootstrap.servers": self.coordinator.address, "group.id": group}
        consumer = ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
        self.stack.callback(consumer.close)
        consumer.subscribe([topic])
        for message in eventually(lambda: list(consumer.poll(1.0)), 60, what="the first record"):
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()
        return consumer

    def type(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Runs a block as a script; what is left out is left out line by line."""
        lines = block.text.replace("\\\n", " ").splitlines()
        script = "\n".join(line for line in lines if not is_left_out(words_of(line) or [""]))
        for old in sorted(self.names, key=len, reverse=True):
            script = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", self.names[old], script)
        script = re.sub("^! ", "refused ", script, flags=re.MULTILINE)
        if KAFKA_PORT in block.text:
            script = scripts() + script
        home = str(self.folder)
        environment = clean_environment() | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "HOME": home,
            "XDG_STATE_HOME": home,
            "SHARECOORD_BOOTSTRAP_SERVER": self.coordinator.address,
            "SHARECOORD_KAFKA__BOOTSTRAP_SERVERS": self.servers,
            # What a page's consumer waits for was written before.
            "SHARECOORD_GROUP__SHARE_AUTO_OFFSET_RESET": "earliest",
        }
        return subprocess.run(
            # It ends the programs of a block that takes too long, too.
            ["timeout", "--kill-after=10", str(BLOCK_TIMEOUT_S), "bash", "-c", PRELUDE + script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def dead_letters(desk: Desk) -> None:
    """Of the group of the page, so many that there is one at place 0:41."""
    payments, (billing,) = desk.topic("payments", records=50), desk.own("billing")
    letters = desk.topic("billing-dead")
    desk.configure(billing, share_auto_offset_reset="earliest")
    desk.configure(billing, errors_deadletterqueue_topic_name=letters)
    config = {"bootstrap.servers": desk.coordinator.address, "group.id": billing}
    rejected = 0
    with ShareConsumer(config | {"share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe([payments])
        end_s = time.monotonic() + 60
        while rejected < 50 and time.monotonic() < end_s:
            for message in consumer.poll(1.0):
                consumer.acknowledge(message, AcknowledgeType.REJECT, reason="not an amount")
                rejected += 1
            consumer.commit_sync()
    with AdminClient({"bootstrap.servers": desk.coordinator.address}) as admin:

        def all_sent() -> bool:
            (group,) = admin.describe_groups([billing])
            return group.offsets[0].dead_letters_waiting == 0

        eventually(all_sent, 60, what="the letters")


def pause(desk: Desk) -> None:
    """A group with a member, which is gone before offsets are reset; made anew once deleted."""
    payments, (billing,) = (
        desk.topic("payments", records=RECORDS, partitions=4),
        desk.own("billing"),
    )
    consumer = desk.member(billing, payments)
    with AdminClient({"bootstrap.servers": desk.coordinator.address}) as admin:
        (found,) = admin.describe_groups([billing])
    desk.names["5f0c…"] = found.members[0].member_id
    desk.before["sharecoord groups --reset-offsets"] = consumer.close
    desk.before["sharecoord records finish"] = lambda: desk.member(billing, payments).close()


def migrate(desk: Desk) -> None:
    """A consumer group that got as far as 2."""
    charges, _ = desk.topic("charges"), desk.own("accounting")
    desk.names["accounting-old"] = left_by_a_consumer_group(desk.servers, desk.topics, charges, 6)


def operations(desk: Desk) -> None:
    """Its folders, its store, and Helm."""
    desk.own("orders")
    helm = subprocess.run([ROOT / "tools/ensure_helm.sh"], capture_output=True, check=True)
    desk.names["helm template"] = f"{helm.stdout.decode().strip()} template"
    (desk.folder / "helm").symlink_to(ROOT / "helm")
    backup = desk.folder / "backup"
    backup.mkdir()
    desk.names["/backup/store-$(date +%F).gz"] = str(backup / "store.gz")
    desk.names["/var/lib/sharecoord/store.db"] = str(desk.coordinator.store_path.resolve())
    desk.names["FILE"] = str(backup / "store.gz")
    desk.names["URL"] = f"sqlite:///{desk.folder}/restored.db"


def readme(desk: Desk) -> None:
    """A Kafka without share groups, with records."""
    desk.own("orders-workers", "orders-console")
    broker = desk.stack.enter_context(KafkaBroker(WITHOUT_SHARE_GROUPS))
    Topics(broker.bootstrap_servers).create("orders")
    Topics(broker.bootstrap_servers).produce("orders", 10)
    desk.names["localhost:9092"] = broker.bootstrap_servers
    desk.names[KAFKA_PORT] = f"localhost:{free_ports(1)[0]}"


def wire(desk: Desk) -> None:
    """A topic with a record, and a port of its own."""
    desk.own("packers")
    desk.topic("parcels", records=1)
    desk.names[KAFKA_PORT] = f"localhost:{free_ports(1)[0]}"


def replay(desk: Desk) -> None:
    """An hour with records, of a group that is there."""
    invoices, (invoicing, _) = (
        desk.topic("invoices", records=10),
        desk.own("invoicing", "invoicing-again"),
    )
    desk.member(invoicing, invoices).close()
    now = datetime.now(UTC)
    for said, hours in (("2026-01-31T12:00:00", -1), ("2026-01-31T13:00:00", 1)):
        desk.names[said] = (now + timedelta(hours=hours)).isoformat(timespec="seconds")[:19]


def events(desk: Desk) -> None:
    """The folder that the page's coordinator writes to."""
    desk.names["/var/lib/sharecoord/events"] = desk.names["DIR"] = str(desk.folder / "events")


def security(desk: Desk) -> None:
    """Ports of its own, and an identity provider: its keys on HTTP, and a token for anna."""
    for said, port in zip(("localhost:7443", "localhost:9443"), free_ports(2), strict=True):
        desk.names[said] = f"localhost:{port}"
    served = desk.folder / "provider"
    served.mkdir()
    (served / "keys").write_bytes(key_set(jwk(EC_KEY)))
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    server = desk.stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
    desk.stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    provider = "https://login.example.com"
    desk.names[f"{provider}/keys"] = f"http://127.0.0.1:{server.server_port}/keys"
    for name, audience in (("anna", "sharecoord"), ("anna-elsewhere", "another-service")):
        claims = {"iss": provider, "aud": audience, "sub": "anna", "exp": time.time() + 600}
        token = jwt.encode(claims, EC_KEY, "ES256", {"kid": "k1"})
        (desk.folder / f"{name}.token").write_text(token, encoding="ascii")


PREPARED: Final[dict[str, Callable[[Desk], object]]] = {
    "README.md": readme,
    "helm/sharecoord/README.md": operations,
    "docs/dead-letters.md": dead_letters,
    "docs/delay.md": lambda desk: desk.own("reminder-workers"),
    "docs/events.md": events,
    "docs/migrate.md": migrate,
    "docs/operations.md": operations,
    "docs/ordering.md": lambda desk: desk.own("shop"),
    "docs/pause.md": pause,
    "docs/replay.md": replay,
    "docs/security.md": security,
    "docs/wire.md": wire,
}


@pytest.mark.timeout(2 * BLOCK_TIMEOUT_S)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_tells_to_type_works(
    page: Path,
    coordinator: CoordinatorProcess,
    kafka_broker: KafkaUnderTest,
    topics: Topics,
    tmp_path: Path,
) -> None:
    servers = kafka_broker.bootstrap_servers
    with ExitStack() as stack:
        desk = Desk(coordinator, servers, topics, tmp_path, stack)
        desk.names["localhost:9092"] = servers
        PREPARED.get(name_of(page), lambda _: None)(desk)
        for block in filter(runs, blocks_of(page)):
            for beginning, happens in desk.before.items():
                if block.text.startswith(beginning):
                    happens()
            done = desk.type(block)
            assert done.returncode == 0, f"{block}\n{block.text}\n{done.stdout}{done.stderr}"


def test_a_block_that_fails_is_seen(
    coordinator: CoordinatorProcess, topics: Topics, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        desk = Desk(coordinator, "", topics, tmp_path, stack)
        for text in (
            "sharecoord groups --descripe\ntrue",
            "sharecoord keys list --group g | false",
            "! sharecoord --version",
            "! sharecoord groups --descripe",
        ):
            assert desk.type(Block("page", 1, "sh", text, "")).returncode != 0
