"""The decoder of server-sent events."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cpu_limit import at_most
from trainyard.client.sse import RawEvent, SseDecoder

WIRE = (
    b": heartbeat\n\n"
    b"id: 1\nevent: status\ndata: {}\n\n"
    b"event: log\r\ndata: a\r\ndata: b\r\n\r\n"
    b"data:c\rid: 2\r\r"
    b"event: nothing\n\n"
    b"data: \xe2\x80\xa8\xc2\x85 stays\n\n"
)
EVENTS = [
    RawEvent("1", "status", "{}"),
    RawEvent("1", "log", "a\nb"),
    RawEvent("2", "message", "c"),
    RawEvent("2", "message", "\u2028\x85 stays"),
]


@given(st.lists(st.integers(0, len(WIRE)), max_size=20))
def test_events_do_not_depend_on_chunk_boundaries(cuts):
    decoder, edges = SseDecoder(), [0, *sorted(cuts), len(WIRE)]
    chunks = [WIRE[a:b] for a, b in itertools.pairwise(edges)]
    assert [event for chunk in chunks for event in decoder.feed(chunk)] == EVENTS


def test_unfinished_event_is_dropped():
    decoder = SseDecoder()
    assert decoder.feed(b"data: half") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"\n") == [RawEvent(None, "message", "half")]


def test_long_line_in_many_chunks_takes_linear_time():
    decoder, chunk = SseDecoder(), b"x" * 4096
    decoder.feed(b"data: ")
    with at_most(2):
        for _ in range(8000):
            assert decoder.feed(chunk) == []
        (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == 8000 * 4096
