"""Messages in parts: what is cut is put together again, and what does not fit together is refused."""

from __future__ import annotations

import numpy as np
import pytest
from memsvc_proto.errors import ProtocolError
from memsvc_proto.parts import PART_BYTES, Cut, Whole
from memsvc_proto.wire import HEADER_BYTES, Kind, Message, pack, pack_head, unpack


def parts(cut: Cut) -> list[Message]:
    out = []
    while (frame := cut.next()) is not None:
        out.append(unpack(frame))
    return out


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - HEADER_BYTES, PART_BYTES, 3 * PART_BYTES + 17])
def test_a_message_in_parts_is_the_message(size, rng):
    body = rng.integers(0, 256, size, np.uint8)
    message = Message(Kind.PUBLISH, 7, meta={"topic": "t"}, body=memoryview(body))
    half = size // 2
    for pieces in ([pack(message)], [pack_head(message, size), body[:half], body[half:]]):
        cut, whole = Cut(7, *pieces), Whole()
        found = [whole.take(part) for part in parts(cut)]
        assert found[:-1] == [None] * (len(found) - 1)
        assert bytes(found[-1]) == pack(message)
        assert (cut.left, whole.bytes) == (0, 0)
        again = unpack(found[-1])
        assert (again.kind, again.seq, again.meta, bytes(again.body)) == (Kind.PUBLISH, 7, {"topic": "t"}, body.tobytes())


def test_parts_that_do_not_fit_are_refused():
    frame = pack(Message(Kind.PUBLISH, 7, body=bytes(4 * PART_BYTES)))

    def of(seq: int) -> list[Message]:
        return parts(Cut(seq, frame))

    whole = Whole()
    for n, wrong in enumerate((of(7)[1:], [of(7)[0], *of(7)[2:]], [of(7)[0], *of(8)[1:]])):
        assert [whole.take(part) for part in wrong] == [None] * len(wrong)
        assert (whole.torn, whole.bytes) == (n + 1, 0)
    for part in of(7)[:2]:
        whole.take(part)
    assert whole.bytes == 2 * PART_BYTES
    found = [whole.take(part) for part in of(9)]  # after a break the sender begins anew
    assert bytes(found[-1]) == frame
    longer = of(7)[-1]
    longer.body = bytes(len(longer.body) + 1)
    for part in of(7)[:-1]:
        whole.take(part)
    assert whole.take(longer) is None


def test_a_message_that_is_too_large_is_refused_once():
    whole = Whole(most_bytes=2 * PART_BYTES)
    frame = pack(Message(Kind.PUBLISH, 7, body=bytes(4 * PART_BYTES)))
    first, *rest = parts(Cut(7, frame))
    with pytest.raises(ProtocolError, match=r"the most is 2,097,152"):
        whole.take(first)
    assert [whole.take(part) for part in rest] == [None] * len(rest)
    with pytest.raises(ProtocolError, match="the most is"):
        Whole().take(Message(Kind.PART, 1, a=0, b=1 << 60, body=b"x"))
    with pytest.raises(ProtocolError, match="the most is"):
        Whole().take(Message(Kind.PART, 1, a=0, b=3, body=b"x"))
