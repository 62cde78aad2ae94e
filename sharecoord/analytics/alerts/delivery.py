"""Delivery of alerts to stderr, webhooks and topics. A target that fails never stops a job."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sharecoord.analytics.alerts.machine import Alert
from sharecoord.analytics.alerts.rules import Rule, Target, TargetKind

if TYPE_CHECKING:
    from sharecoord.analytics.kafka_source.alert_topic import AlertTopic

WEBHOOK_TIMEOUT_S: Final = 5.0
"""Limit of one attempt, for connecting and for each wait for the answer."""
WEBHOOK_TRIES: Final = 3
WEBHOOK_PAUSE_S: Final = 0.5
"""Pause before the second attempt; twice as long before the third."""
RESPONSE_BYTES: Final = 1 << 16
"""Largest part of an answer that is read; nothing of it is used."""


Poster = Callable[[str, bytes], None]
"""Sends a body to a URL once; raises OSError or HTTPException when it was not taken."""


def post(url: str, body: bytes) -> None:
    """POSTs JSON.

    Raises:
        OSError: No connection, no answer in time, or one that is not 2xx.
        HTTPException: The answer is no HTTP.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "sharecoord"}
    # The reader of the rules lets http and https pass, nothing else.
    request = urllib.request.Request(url, body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S) as answer:
        answer.read(RESPONSE_BYTES)


def payload(alert: Alert) -> dict[str, Any]:
    """An alert as JSON; times are ISO 8601 in UTC."""
    return {
        **{name: getattr(alert, name) for name in ("id", "rule", "kind", "group", "state")},
        "since": _time(alert.since_ms),
        "at": _time(alert.at_ms),
        "value": alert.value,
        "limit": alert.limit,
        "members": list(alert.members),
    }


def line(alert: Alert) -> str:
    """An alert in one line, for people."""
    what = f"alert {alert.state}: {alert.rule}: group {alert.group}"
    value = "not known" if alert.value is None else f"{alert.value:.6g}"
    who = f" ({', '.join(alert.members)})" if alert.members else ""
    return (
        f"{what}: {alert.kind or 'a rule that is gone'} {value}, limit {alert.limit:g}{who}, "
        f"since {_time(alert.since_ms)}"
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat().replace("+00:00", "Z")


class Delivery:
    """Sends alerts to the targets of their rules.

    Attributes:
        sent: Number of delivered alerts by target kind.
        failed: Number of alerts that were not delivered, by target kind.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        say: Callable[[str], None],
        *,
        kafka: Mapping[str, str] | None = None,
        poster: Poster = post,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Opens a connection to Kafka if a rule wants it, in the background.

        `say` takes lines for people, `kafka` are librdkafka's settings for targets in Kafka,
        `pause` waits between two attempts for some seconds.

        Raises:
            InvalidConfigError: librdkafka refuses a setting, or there is no cluster.
        """
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._targets = {rule.name: rule.to for rule in rules}
        self._say, self._poster, self._pause = say, poster, pause
        self._topic: AlertTopic | None = None
        if any(to.kind is TargetKind.KAFKA for each in self._targets.values() for to in each):
            from sharecoord.analytics.kafka_source.alert_topic import AlertTopic

            self._topic = AlertTopic(kafka or {})

    def deliver(self, alerts: Sequence[Alert]) -> None:
        """Sends alerts, in order; failures are said and counted.

        A webhook or topic that failed all its attempts is not tried again for the rest of these
        alerts, so that the time for a dead target is bounded.
        """
        dead: set[Target] = set()
        for alert in alerts:
            # The end of an alert whose rule is gone goes to the log.
            for target in self._targets.get(alert.rule, (Target(TargetKind.LOG),)):
                problem = "not tried again" if target in dead else self._send(target, alert)
                if problem is None:
                    self.sent[target.kind] += 1
                    continue
                dead.add(target)
                self.failed[target.kind] += 1
                self._say(
                    f"{line(alert)}; not delivered to {target.kind} {_shown(target)}: {problem}"
                )

    def _send(self, target: Target, alert: Alert) -> str | None:
        """None when the alert was taken, else the reason why not."""
        if target.kind is TargetKind.LOG:
            self._say(line(alert))
            return None
        body = json.dumps(payload(alert), ensure_ascii=False).encode()
        if self._topic is not None and target.kind is TargetKind.KAFKA:
            return self._topic.send(target.address, alert.group, body)
        problem = ""
        for attempt in range(WEBHOOK_TRIES):
            if attempt:
                self._pause(WEBHOOK_PAUSE_S * 2 ** (attempt - 1))
            try:
                self._poster(target.address, body)
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}"
                if error.code < 500 and error.code not in (408, 429):  # the answer stays the same
                    return problem
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                return None
        return f"{problem} ({WEBHOOK_TRIES} attempts)"

    def summary(self) -> str | None:
        """A line on delivered and failed alerts; None when there were none."""
        if not self.sent and not self.failed:
            return None
        text = f"alerts delivered: {_counts(self.sent) or 'none'}"
        return f"{text}; not delivered: {_counts(self.failed)}" if self.failed else text


def _counts(by_kind: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(by_kind.items()))


def _shown(target: Target) -> str:
    """A target without the parts of a URL that may be secret: its query and its user."""
    if target.kind is not TargetKind.WEBHOOK:
        return target.address
    url = urlsplit(target.address)
    return f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "") + "/…"
