"""Kafka's Java share consumers, driven from here: a Java program that hosts many of them."""

from __future__ import annotations

import atexit
import base64
import functools
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sharecoord.devenv import maven

SOURCE = Path(__file__).resolve().parent / "java" / "ShareMembers.java"
ANSWERS_S, COMPILE_S = 60.0, 240.0
CLOSE_MS = 30_000
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For programs that live for seconds: no time is spent on the best machine code."""

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
_compiling = threading.Lock()


class JavaError(Exception):
    """An exception of the Java client; `name` is its class."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Heard(NamedTuple):
    """What the acknowledgement commit callback was told of a record."""

    topic: str
    partition: int
    offset: int
    error: str | None
    """Kafka's name of the error."""


@dataclass(frozen=True)
class JavaRecord:
    """A record that a poll returned."""

    topic: str
    partition: int
    offset: int
    delivery: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def compiled() -> Path:
    """The folder with the program's classes; they run with the jars of every release.

    Raises:
        DevenvError: There is no Java.
    """
    # Scripts run in threads, and the first of them compiles for all.
    with _compiling:
        return _compiled()


@functools.cache
def _compiled() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sharecoord-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    javac = maven.find_java().with_name("javac")
    jars = f"{maven.kafka_libs()}/*"
    subprocess.run(
        [javac, "-proc:none", "-cp", jars, "-d", folder, SOURCE], check=True, timeout=COMPILE_S
    )
    return folder


class JavaProgram:
    """A Java process with consumers of one release of Kafka's client."""

    def __init__(
        self, version: str = maven.DEFAULT_VERSION, *, classes: Path | None = None
    ) -> None:
        """Starts it; it ends with this process. `classes` is what `compiled` has returned."""
        self.version = version
        class_path = f"{classes or compiled()}:{maven.kafka_libs(version)}/*"
        self._process = subprocess.Popen(
            [maven.find_java(), *_OPTIONS, "-cp", class_path, SOURCE.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def consumer(self, name: str, config: Mapping[str, object]) -> JavaConsumer:
        """Makes a consumer; its name is used once, and is its client id unless that is given.

        Raises:
            JavaError: The client refuses its configuration.
        """
        made = JavaConsumer(self, name)
        made.call("open", config={"client.id": name, **config})
        return made

    def ask(self, member: str, call: str, given: Mapping[str, object]) -> Future[dict[str, Any]]:
        """Sends a request; its answer comes later."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            line = json.dumps({"number": number, "member": member, "call": call, **given})
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["number"]).set_result(answer)
        for waiting in list(self._waiting.values()):
            waiting.set_exception(EOFError("the Java program has ended"))

    def kill(self) -> None:
        """Ends it as kill -9 does."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """Ends it; consumers that are still open are not closed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        self._process.wait(ANSWERS_S)
        self._reader.join(ANSWERS_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass  # a request that nobody reads any more


class JavaConsumer:
    """A `KafkaShareConsumer` with keys and values as bytes; methods are those of the client.

    Each raises a JavaError where the client throws.
    """

    def __init__(self, program: JavaProgram, name: str) -> None:
        self._program = program
        self.name = name
        self.heard: list[Heard] = []
        """What callbacks were told; the user empties it."""

    def call(self, name: str, **given: object) -> Any:
        """Calls a method of the consumer and waits for its end."""
        return self.answer_to(self.begin(name, **given))

    def begin(self, name: str, **given: object) -> Future[dict[str, Any]]:
        """Calls a method of the consumer; see `answer_to`."""
        return self._program.ask(self.name, name, given)

    def answer_to(self, asked: Future[dict[str, Any]]) -> Any:
        """What a method returned."""
        answer = asked.result(ANSWERS_S)
        self.heard += (Heard(*each) for each in answer.get("heard", ()))
        if "error" in answer:
            raise JavaError(answer["error"], answer["text"])
        return answer["value"]

    def subscribe(self, *topics: str) -> None:
        self.call("subscribe", topics=topics)

    def unsubscribe(self) -> None:
        self.call("unsubscribe")

    def poll(self, timeout_s: float) -> list[JavaRecord]:
        return [_record(each) for each in self.call("poll", timeout_ms=int(timeout_s * 1000))]

    def acknowledge(self, record: JavaRecord, kind: int = ACCEPT) -> None:
        self.acknowledge_offset(record.topic, record.partition, record.offset, kind)

    def acknowledge_offset(self, topic: str, partition: int, offset: int, kind: int) -> None:
        """By its record where the last poll returned that, by offset else."""
        self.call("acknowledge", topic=topic, partition=partition, offset=offset, type=kind)

    def commit_sync(self, timeout_s: float = 20.0) -> dict[tuple[str, int], str | None]:
        """By topic and partition Kafka's name of the error."""
        found = self.call("commit_sync", timeout_ms=int(timeout_s * 1000))
        return {
            (topic, int(number)): error
            for place, error in found.items()
            for topic, _, number in [place.rpartition(":")]
        }

    def commit_async(self) -> None:
        self.call("commit_async")

    def wakeup(self) -> None:
        self.call("wakeup")

    def lock_duration_ms(self) -> int | None:
        found: int | None = self.call("lock_duration_ms")
        return found

    def metrics(self) -> dict[str, str]:
        found: dict[str, str] = self.call("metrics")
        return found

    def close(self) -> None:
        self.call("close", timeout_ms=CLOSE_MS)


def _record(told: Mapping[str, Any]) -> JavaRecord:
    headers: Sequence[tuple[str, str | None]] = told["headers"]
    return JavaRecord(
        **{
            **told,
            "key": _bytes(told["key"]),
            "value": _bytes(told["value"]),
            "headers": [(name, _bytes(value)) for name, value in headers],
        }
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
