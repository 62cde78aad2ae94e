"""Headers of records from librdkafka and to it, whatever bytes their names have.

Kafka does not check that the name of a header is UTF-8. confluent-kafka decodes and encodes names
strictly and does not look whether that worked: `Message.headers()` then returns a list with holes
while an exception is set, which Python's interpreter does not notice once it has specialized the
call, and `Producer.produce` passes a null pointer on. Either ends the process. So for the time of
these calls Python's error handler "strict" escapes instead (docs/decisions/0033).
"""

from __future__ import annotations

import codecs
import gc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any, Final

from confluent_kafka import Message, Producer

from sharecoord.core.records import Headers
from sharecoord.ports import OutgoingMessage

_escape: Final = partial(codecs.register_error, "strict", codecs.lookup_error("surrogateescape"))
_refuse: Final = partial(codecs.register_error, "strict", codecs.strict_errors)
_call: Final[Callable[[Callable[[], Any]], Any]] = call
_exhaust: Final = deque[None](maxlen=0).extend


def read_headers(messages: Sequence[Message]) -> tuple[list[Headers | None], list[int]]:
    """The headers of some messages; a name has a lone surrogate for each byte that is not UTF-8.

    Returns:
        Headers, None for a message without any; and the indexes of messages whose headers the
        client did not give.
    """
    found: list[Headers | None] = []
    lost: list[int] = []
    # Unlike a specialized call, `map` always looks whether an exception is set.
    headers_of: Callable[[Message], Any] = type(messages[0]).headers
    each = map(headers_of, messages)
    while len(found) < len(messages):
        try:
            _with_any_name(partial(found.extend, each))
        except (SystemError, UnicodeDecodeError):
            lost.append(len(found))
            found.append(None)
    return found, lost


def produce(
    producer: Producer, topic: str, message: OutgoingMessage, on_delivery: Callable[..., None]
) -> None:
    """Hands a message to a producer, its headers byte for byte as `read_headers` read them.

    Raises:
        BufferError: The producer's queue is full.
        KafkaException: librdkafka refuses the message.
    """
    hand_over = partial(
        producer.produce,
        topic,
        value=message.value,
        key=message.key,
        headers=list(message.headers),
        on_delivery=on_delivery,
    )
    if all(_is_text(name) for name, _ in message.headers):
        hand_over()
    else:
        _with_any_name(hand_over)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_any_name(work: Callable[[], Any]) -> None:
    """Calls C code while names of headers may be anything.

    No other thread sees the changed handler: the steps are C functions, called by C functions, and
    Python changes threads between two instructions of its own only. The garbage collector, which
    may call Python code at any allocation, waits.
    """
    enable = gc.enable if gc.isenabled() else gc.disable
    steps: tuple[Callable[[], Any], ...] = (gc.disable, _escape, work, _refuse, enable)
    try:
        _exhaust(map(_call, steps))
    except BaseException:
        _refuse()
        enable()
        raise
