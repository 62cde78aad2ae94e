"""Headers whose names are any bytes: a real librdkafka in a process of its own, which must live."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.kafka import headers
from tests.raw_records import RawRecord, produce_raw

ODD = [(b"fine", b"1"), (b"x\xffy", b"2"), (b"\xfe", None), ("ключ".encode(), b"3"), (b"", b"4")]
AS_TEXT = [("fine", "1"), ("x\udcffy", "2"), ("\udcfe", None), ("ключ", "3"), ("", "4")]
WARM_ROUNDS = 60
"""Python specializes a call after a few rounds, and from then on does not look for exceptions."""

READ = """
import gc, json, sys
from confluent_kafka import Consumer, Producer, TopicPartition
from sharecoord.ingest.columns import build_chunk
from sharecoord.kafka.headers import produce
from sharecoord.ports import OutgoingMessage

servers, warm_rounds = sys.argv[1], int(sys.argv[2])
common = {"bootstrap.servers": servers}
consumer = Consumer({**common, "group.id": "g"})
consumer.assign([TopicPartition("t", 0, 0)])

def take(count):
    found = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 1.0)
    return found

warm = take(50)
for _ in range(warm_rounds):
    assert build_chunk(warm, 0).headers[0] == [("ok", b"1")]
first = build_chunk(take(4), 50).headers
# What was read is sent as it is, and comes back as it was.
producer = Producer(common)
for name in ("ok", "x\\udcffy"):
    produce(producer, "t", OutgoingMessage(b"k", b"again", [(name, b"1")]), lambda *_: None)
produce(producer, "t", OutgoingMessage(b"k", b"again", first[1]), lambda *_: None)
assert producer.flush(30) == 0
consumer.assign([TopicPartition("t", 0, 54), *(TopicPartition("t", n, 0) for n in (1, 2, 3))])
again = build_chunk(take(3), 0).headers
try:
    b"\\xff".decode()
    sys.exit("Python still decodes what is not UTF-8")
except UnicodeDecodeError:
    pass
assert gc.isenabled()
print(json.dumps([first, again], default=bytes.decode))
"""


def test_a_name_that_is_not_utf_8_ends_no_process_and_loses_no_header() -> None:
    with MockCluster(topics=["t"]) as cluster:
        servers = cluster.bootstrap_servers
        produce_raw(servers, "t", [RawRecord(b"warm", [(b"ok", b"1")])] * 50)
        odd = RawRecord(b"odd", ODD)
        produce_raw(servers, "t", [RawRecord(b"before"), odd, odd, RawRecord(b"behind")])
        child = subprocess.run(
            [sys.executable, "-c", READ, servers, str(WARM_ROUNDS)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert child.returncode == 0, child.stderr
    first, again = json.loads(child.stdout)
    expected = [list(each) for each in AS_TEXT]
    assert first == {"1": expected, "2": expected}
    assert again == {"0": [["ok", "1"]], "1": [["x\udcffy", "1"]], "2": expected}


@pytest.mark.parametrize("collects", [True, False])
def test_whatever_the_call_raises_python_decodes_and_collects_as_before(*, collects: bool) -> None:
    def fail() -> None:
        assert b"\xff".decode() == "\udcff"
        assert not gc.isenabled()
        raise BufferError

    if not collects:
        gc.disable()
    try:
        with pytest.raises(BufferError):
            headers._with_any_name(fail)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode()
