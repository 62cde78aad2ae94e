"""One member of a share group, driven in the same way with each client, here or in a child.

`confluent_kafka` and `sharecoord_sdk` have the same `ShareConsumer`, Kafka's Java client has its
own; this is the one place that knows where a script has to speak to them differently.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import multiprocessing
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from tests.java_members import JavaProgram

NATIVE, OURS = "confluent_kafka", "sharecoord_sdk"
COMMIT_S = 20.0
CHILD_ANSWERS_S = 60.0
CLOSE_S = 40.0
ALONE_POLL_S = 1.0
JAVA = "java "
"""What begins the module of Kafka's Java client; its version follows."""
_NEVER_CLOSED: list[Any] = []
"""Kept, because librdkafka would wait for them once more when they are collected."""

ACCEPT, RELEASE, REJECT = 1, 2, 3

Place = tuple[int, int]
"""Partition and offset."""


class Seen(NamedTuple):
    """A record that a poll returned."""

    partition: int
    offset: int
    delivery: int

    @property
    def place(self) -> Place:
        return self.partition, self.offset


class Confirmed(NamedTuple):
    """What a callback said of a record; `error` is Kafka's name of it."""

    place: Place
    error: str | None


class Member(Protocol):
    """What a script does with a member."""

    name: str

    def poll(self, timeout_s: float) -> list[Seen]:
        """Waits for records."""

    def acknowledge(self, place: Place, kind: int) -> None:
        """Says what becomes of a record; sent with the next commit or poll."""

    def commit(self) -> dict[int, str | None]:
        """Sends and waits; by partition the name of the error."""

    def commit_async(self) -> None:
        """Sends."""

    def confirmations(self) -> list[Confirmed]:
        """What callbacks have said since the last call."""

    def hold(self) -> None:
        """Keeps what it has and takes nothing more."""

    def leave(self) -> None:
        """Ends the subscription."""

    def close(self) -> list[Confirmed]:
        """Leaves the group; returns what callbacks have said and nobody has asked for."""

    def kill(self) -> None:
        """Dies as by kill -9."""


class LocalMember:
    """A consumer of this process; see `Member`."""

    def __init__(
        self, module_name: str, name: str, topic: str, partitions: int, config: Mapping[str, Any]
    ) -> None:
        self._module: Any = importlib.import_module(module_name)
        self.name = name
        self._topic = topic
        self._partitions = partitions
        self._messages: dict[Place, Any] = {}
        self._confirmed: list[Confirmed] = []
        self._turn = itertools.count()
        own = dict(config)
        if module_name == NATIVE:
            own["log_level"] = 3  # else each says that it is a preview
        else:
            # One poll ahead, as Kafka's client: a member waits here while others have their turn,
            # and the lock of what waits in its buffer must not run out.
            own.setdefault("sharecoord.buffer.records", config.get("max.poll.records", 500))
        self._consumer = self._module.ShareConsumer({**own, "client.id": name})
        self._consumer.set_acknowledgement_commit_callback(self._on_commit)
        self._consumer.subscribe([topic])

    def _on_commit(self, offsets: Mapping[Any, set[int]], error: Any) -> None:
        self._confirmed += [
            Confirmed((place.partition, offset), error_name(error))
            for place, found in offsets.items()
            for offset in found
        ]

    def poll(self, timeout_s: float) -> list[Seen]:
        messages = list(self._consumer.poll(timeout_s))
        for message in messages:
            assert message.error() is None, f"{self.name}: {message.error()}"
        seen = [Seen(m.partition(), m.offset(), m.delivery_count()) for m in messages]
        self._messages = {one.place: m for one, m in zip(seen, messages, strict=True)}
        return seen

    def acknowledge(self, place: Place, kind: int) -> None:
        """By message or by offset, and now and then corrected before it is sent."""
        turn, ack = next(self._turn), self._module.AcknowledgeType
        message = self._messages[place]
        if turn % 5 == 0:
            self._consumer.acknowledge(message, ack.REJECT if kind == ACCEPT else ack.ACCEPT)
        if turn % 3 == 0:
            self._consumer.acknowledge_offset(self._topic, *place, ack(kind))
        else:
            self._consumer.acknowledge(message, ack(kind))

    def commit(self) -> dict[int, str | None]:
        outcome = self._consumer.commit_sync(COMMIT_S)
        return {place.partition: error_name(error) for place, error in outcome.items()}

    def commit_async(self) -> None:
        self._consumer.commit_async()

    def confirmations(self) -> list[Confirmed]:
        found, self._confirmed = self._confirmed, []
        return found

    def hold(self) -> None:
        """What the SDK has and nobody has seen goes back; Kafka's client has no such thing."""
        if hasattr(self._consumer, "pause"):
            places = [self._module.TopicPartition(self._topic, n) for n in range(self._partitions)]
            self._consumer.pause(places)

    def leave(self) -> None:
        self._consumer.unsubscribe()

    def close(self) -> list[Confirmed]:
        """Of many that close at once, one of librdkafka's in some hundred waits for ever."""
        closing: Future[None] = Future()
        ends = threading.Thread(target=_close, args=(self._consumer, closing), daemon=True)
        ends.start()
        if not wait([closing], CLOSE_S).done:
            _NEVER_CLOSED.append(self._consumer)
            raise AssertionError(f"{self.name}: close() did not end in {CLOSE_S:g} s")
        closing.result()
        return self.confirmations()

    def kill(self) -> None:
        raise AssertionError("only a member of a process of its own can be killed")


def _close(consumer: Any, closing: Future[None]) -> None:
    try:
        closing.set_result(consumer.close())
    except BaseException as error:  # noqa: BLE001 - handed over to who waits
        closing.set_exception(error)


def error_name(error: Any) -> str | None:
    """Kafka's name of an error, of an exception too."""
    if error is None:
        return None
    cause = error if hasattr(error, "name") else error.args[0]
    return str(cause.name())


class ChildMember:
    """A consumer of a process of its own, which can be killed; see `Member`."""

    def __init__(
        self, module_name: str, name: str, topic: str, partitions: int, config: Mapping[str, Any]
    ) -> None:
        # A server that forks: a child is there at once, and has none of this process's threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([NATIVE, OURS, __name__])
        self.name = name
        self._pipe, theirs = context.Pipe()
        arguments = (module_name, name, topic, partitions, dict(config))
        self._process = context.Process(target=_serve, args=(theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(CHILD_ANSWERS_S), f"{self.name} does not answer"
        error, value = self._pipe.recv()
        assert error is None, f"{self.name}: {error}"
        return value

    def poll(self, timeout_s: float) -> list[Seen]:
        return self._ask("poll", timeout_s)  # type: ignore[no-any-return]

    def acknowledge(self, place: Place, kind: int) -> None:
        self._ask("acknowledge", place, kind)

    def commit(self) -> dict[int, str | None]:
        return self._ask("commit")  # type: ignore[no-any-return]

    def commit_async(self) -> None:
        self._ask("commit_async")

    def confirmations(self) -> list[Confirmed]:
        return self._ask("confirmations")  # type: ignore[no-any-return]

    def hold(self) -> None:
        self._ask("hold")

    def leave(self) -> None:
        self._ask("leave")

    def close(self) -> list[Confirmed]:
        found: list[Confirmed] = self._ask("close")
        self._end()
        return found

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.join(CHILD_ANSWERS_S)
        self._process.close()
        self._pipe.close()


def _serve(pipe: Connection, arguments: tuple[Any, ...]) -> None:
    """The child: does what it is told until it has closed its consumer, or is killed."""
    try:
        member = LocalMember(*arguments)
        pipe.send((None, None))
        method = ""
        while method != "close":
            method, given = pipe.recv()
            pipe.send((None, getattr(member, method)(*given)))
    except EOFError:
        pass  # the parent is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        pipe.send((repr(error), None))


class JavaMember:
    """A consumer of Kafka's Java client; see `Member`.

    Members share a Java process, but for one that is to be killed.
    """

    def __init__(
        self, program: JavaProgram, name: str, topic: str, config: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._topic = topic
        self._turn = itertools.count()
        self._program = program
        # A script has names of its own, and scripts of a run share the program.
        unique = f"{config['group.id']}-{name}"
        self._consumer = program.consumer(unique, {**config, "client.id": name})
        self._consumer.subscribe(topic)

    def poll(self, timeout_s: float) -> list[Seen]:
        return [Seen(r.partition, r.offset, r.delivery) for r in self._consumer.poll(timeout_s)]

    def acknowledge(self, place: Place, kind: int) -> None:
        """Now and then corrected before it is sent."""
        if next(self._turn) % 5 == 0:
            other = REJECT if kind == ACCEPT else ACCEPT
            self._consumer.acknowledge_offset(self._topic, *place, other)
        self._consumer.acknowledge_offset(self._topic, *place, kind)

    def commit(self) -> dict[int, str | None]:
        outcome = self._consumer.commit_sync(COMMIT_S)
        return {partition: error for (_, partition), error in outcome.items()}

    def commit_async(self) -> None:
        self._consumer.commit_async()

    def confirmations(self) -> list[Confirmed]:
        found, self._consumer.heard = self._consumer.heard, []
        return [Confirmed((each.partition, each.offset), each.error) for each in found]

    def hold(self) -> None:
        """Kafka's client has no such thing."""

    def leave(self) -> None:
        self._consumer.unsubscribe()

    def close(self) -> list[Confirmed]:
        self._consumer.close()
        return self.confirmations()

    def kill(self) -> None:
        self._program.kill()


class JavaMemberAlone(JavaMember):
    """One with a Java process of its own, which can be killed."""

    def poll(self, timeout_s: float) -> list[Seen]:
        # Each poll asks for records, and a young process is slow: of short ones a later one may
        # ask when the records of the former have come, and fetch what the killed will never see.
        return super().poll(max(timeout_s, ALONE_POLL_S))

    def close(self) -> list[Confirmed]:
        found = super().close()
        self._program.close()
        return found


def java_program(version: str) -> JavaProgram:
    """The program that members share which nobody kills; it ends with this process."""
    with _starting:
        return _java_program(version)


_starting = threading.Lock()
_java_program = functools.cache(JavaProgram)


def java_member(
    version: str, name: str, topic: str, config: Mapping[str, Any], *, child: bool
) -> JavaMember:
    """A member of Kafka's Java client; a child has a process of its own."""
    if child:
        return JavaMemberAlone(JavaProgram(version), name, topic, config)
    return JavaMember(java_program(version), name, topic, config)
