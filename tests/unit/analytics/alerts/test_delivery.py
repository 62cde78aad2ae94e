"""Where alerts go, and targets that fail."""

from __future__ import annotations

import email.message
import json
import threading
import urllib.error
from collections.abc import Iterator
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sharecoord.analytics.alerts.delivery import WEBHOOK_TRIES, Delivery, line, post
from sharecoord.analytics.alerts.machine import Alert
from sharecoord.analytics.alerts.rules import Rule, RuleKind, Target, TargetKind
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import InvalidConfigError
from tests.support import unique_name

URL = "https://user:hidden@h:8443/p?token=hidden"
ALERT = Alert("r", "jain_below", "g", "begins", 0, 10_000, 0.5, 0.8, ("m1", "m2"))
PAYLOAD = {
    "id": "r/g/0",
    "rule": "r",
    "kind": "jain_below",
    "group": "g",
    "state": "begins",
    "since": "1970-01-01T00:00:00Z",
    "at": "1970-01-01T00:00:10Z",
    "value": 0.5,
    "limit": 0.8,
    "members": ["m1", "m2"],
}


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError(URL, code, "text", email.message.Message(), None)


class Web:
    """Answers with what it was given, then takes everything."""

    def __init__(self, *problems: Exception) -> None:
        self.problems, self.bodies, self.pauses = list(problems), [], []  # type: ignore[var-annotated]

    def __call__(self, url: str, body: bytes) -> None:
        assert url == URL
        self.bodies.append(json.loads(body))
        if self.problems:
            raise self.problems.pop(0)


def delivery(web: Web, *targets: Target) -> tuple[Delivery, list[str]]:
    said: list[str] = []
    to = targets or (Target(TargetKind.WEBHOOK, URL),)
    rule = Rule("r", RuleKind.JAIN_BELOW, 0.8, to=to)
    made = Delivery([rule], said.append, kafka={}, poster=web, pause=web.pauses.append)
    return made, said


def test_a_line_for_people() -> None:
    assert line(ALERT) == (
        "alert begins: r: group g: jain_below 0.5, limit 0.8 (m1, m2), since 1970-01-01T00:00:00Z"
    )
    gone = Alert("r", "", "g", "ends", 0, 10_000, None, 0)
    assert "a rule that is gone not known" in line(gone)


def test_to_the_log_and_to_a_webhook() -> None:
    web = Web()
    made, said = delivery(web, Target(TargetKind.LOG), Target(TargetKind.WEBHOOK, URL))
    made.deliver([ALERT])
    assert said == [line(ALERT)]
    assert web.bodies == [PAYLOAD]
    assert made.summary() == "alerts delivered: log 1, webhook 1"


def test_a_webhook_gets_a_bounded_number_of_tries() -> None:
    web = Web(TimeoutError("timed out"), http_error(503))
    made, said = delivery(web)
    made.deliver([ALERT])
    assert (len(web.bodies), web.pauses, said) == (3, [0.5, 1.0], [])
    web = Web(*[BadStatusLine("x")] * 9)
    made, said = delivery(web)
    made.deliver([ALERT, ALERT])
    # One that is dead costs its tries once, not for each alert.
    assert len(web.bodies) == WEBHOOK_TRIES
    assert (made.failed, made.sent) == ({"webhook": 2}, {})
    assert "not delivered to webhook https://h:8443/…: x (3 attempts)" in said[0]
    assert "not tried again" in said[1]
    assert "hidden" not in "".join(said)
    assert made.summary() == "alerts delivered: none; not delivered: webhook 2"
    made.deliver([ALERT])
    assert len(web.bodies) == 2 * WEBHOOK_TRIES


@pytest.mark.parametrize(("code", "tries"), [(404, 1), (401, 1), (429, 3), (408, 3), (500, 3)])
def test_a_refusal_is_not_asked_again(code: int, tries: int) -> None:
    web = Web(*[http_error(code)] * 9)
    made, said = delivery(web)
    made.deliver([ALERT])
    assert len(web.bodies) == tries
    assert f"HTTP {code}" in said[0]


def test_a_topic_without_a_cluster_is_an_error_of_the_settings() -> None:
    with pytest.raises(InvalidConfigError, match="--kafka"):
        delivery(Web(), Target(TargetKind.KAFKA, "alerts"))


def test_to_a_topic(mock_cluster: MockCluster) -> None:
    name, said = unique_name("alerts"), list[str]()
    rule = Rule("r", RuleKind.JAIN_BELOW, 0.8, to=(Target(TargetKind.KAFKA, name),))
    settings = {"bootstrap.servers": mock_cluster.bootstrap_servers}
    made = Delivery([rule], said.append, kafka=settings)
    made.deliver([ALERT])
    assert (made.summary(), said) == ("alerts delivered: kafka 1", [])
    consumer = Consumer({**settings, "group.id": name, "fetch.wait.max.ms": 5})
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(4)])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None
    assert (message.key(), json.loads(message.value() or b"")) == (b"g", PAYLOAD)


def test_the_end_of_a_rule_that_is_gone_is_said() -> None:
    made, said = delivery(Web())
    made.deliver([Alert("old", "", "g", "ends", 0, 10_000, None, 0)])
    assert said[0].startswith("alert ends: old: group g")


def test_nothing_to_say() -> None:
    assert delivery(Web())[0].summary() is None


class _Handler(BaseHTTPRequestHandler):
    """Keeps what was posted; the path is the status that it answers with."""

    posted: list[tuple[str, str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, self.headers["Content-Type"], body))
        self.send_response(int(self.path.removeprefix("/")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), _Handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_a_real_post(server: str, tmp_path: Path) -> None:
    _Handler.posted.clear()
    post(f"{server}/204", b"{}")
    assert _Handler.posted == [("/204", "application/json", b"{}")]
    with pytest.raises(urllib.error.HTTPError, match="503") as caught:
        post(f"{server}/503", b"{}")
    caught.value.close()
    with pytest.raises(urllib.error.URLError):
        post("http://127.0.0.1:1/", b"{}")
