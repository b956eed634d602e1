"""What sends hostile messages to each of a server's ports, and counts what must have come of them."""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import socket
import time
from collections import Counter
from typing import Any

import zmq
from memsvc_client.channel import Plan
from memsvc_client.memory_file import MemoryFile
from memsvc_proto import wire
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import Kind, Message
from mutate import EDGES, METAS, Seeds, mutated, raw_bytes

BURST = 400
_ANSWER_S = 30.0


class Stalled(Exception):
    """The server does not answer."""


class Framed:
    """Well-framed messages by DEALERs, each with real ones of its own, mutated. `sent`: what the server must have counted."""

    def __init__(self, context: zmq.Context[Any], addresses: dict[str, str], rng: random.Random, number: int = 0) -> None:
        """`number`: of the process, which keeps its names apart from others'."""
        self._context, self._addresses, self._rng, self._number = context, addresses, rng, number
        self.sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.longest = 0.0
        self._connections = 0

    def connection(self, link: str, burst: int = BURST) -> int:
        """One connection and its messages; returns how many. Raises Stalled."""
        self._connections += 1
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(self._addresses["address" if link == "door" else "draw"])
        try:
            name = f"fuzz-{self._number}-{self._connections % 50}"
            hello = Message(Kind.HELLO, 1, meta={"role": "actor", "name": name, "pid": 1, "host": "h", "envs": 2, "versions": {}, "epoch": ""})
            welcome = self._ask(dealer, hello, Kind.WELCOME).meta
            seeds = Seeds(welcome, self._rng)
            messages = seeds.door if link == "door" else seeds.draw
            if self._rng.random() < 0.2:  # one that has not said HELLO
                dealer.close(0)
                dealer = self._context.socket(zmq.DEALER)
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.setsockopt(zmq.RCVHWM, 0)
                dealer.connect(self._addresses["address" if link == "door" else "draw"])
            elif link == "draw":
                self._ask(dealer, seeds.draw[-1], Kind.WELCOME)
            for seq in range(2, burst + 2):
                self._send(dealer, mutated(self._rng.choice(messages), seq, self._rng))
                if seq % 50 == 0:
                    self._read(dealer)
            self._ask(dealer, Message(Kind.PING, 1 << 40), Kind.PONG)
            return burst
        finally:
            dealer.close(0)

    def stats(self) -> dict[str, Any]:
        """The server's, by a viewer's message."""
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(self._addresses["address"])
        try:
            return self._ask(dealer, Message(Kind.STATS, 1), Kind.STATS).meta
        finally:
            dealer.close(0)

    def _send(self, dealer: Any, frames: list[bytes]) -> None:
        self.sent[fate(frames)] += 1
        dealer.send_multipart(frames)

    def _read(self, dealer: Any) -> Message | None:
        """What has come; the last of it."""
        last = None
        with contextlib.suppress(zmq.Again):
            while True:
                last = wire.unpack(dealer.recv(zmq.NOBLOCK))
                self.answers[last.kind.name] += 1
        return last

    def _ask(self, dealer: Any, message: Message, kind: Kind) -> Message:
        began = time.monotonic()
        frame = wire.pack(message)
        while time.monotonic() - began < _ANSWER_S:
            self._send(dealer, [frame])  # again where its answer found the server's queue to this peer full
            asked = time.monotonic()
            while time.monotonic() - asked < 2:
                if not dealer.poll(200):
                    continue
                while dealer.poll(0):
                    answer = wire.unpack(dealer.recv())
                    self.answers[answer.kind.name] += 1
                    if answer.kind is kind and answer.seq == message.seq:
                        self.longest = max(self.longest, time.monotonic() - began)
                        return answer
        raise Stalled(f"{message.kind.name} was not answered within {_ANSWER_S:g} s")


def fate(frames: list[bytes]) -> str:
    """What a server counts of these frames: "unreadable", "carried" (what is the router's own is no message), or "messages"."""
    if len(frames) != 1:
        return "unreadable"
    try:
        return "carried" if wire.unpack(frames[0]).kind in (Kind.SHARED, Kind.PART) else "messages"
    except ProtocolError:
        return "unreadable"


class Raw:
    """Connections to every TCP port by those who speak something else, or break off."""

    def __init__(self, ports: list[tuple[str, int]], rng: random.Random) -> None:
        self._ports, self._rng = ports, rng
        self.sent: Counter[str] = Counter()
        self._open: list[socket.socket] = []

    def connection(self) -> int:
        """One connection, one message."""
        where = self._rng.choice(self._ports)
        try:
            made = socket.create_connection(where, timeout=5)
        except OSError as error:
            raise Stalled(f"port {where} takes no connection: {error}") from None
        with contextlib.suppress(OSError):
            made.settimeout(0.05)
            made.sendall(raw_bytes(self._rng))
            if self._rng.random() < 0.01:
                made.recv(64)
        # Some stay, and never say another word.
        if self._rng.random() < 0.05:
            self._open.append(made)
        else:
            made.close()
        while len(self._open) > 200:
            self._open.pop(0).close()
        self.sent[f"port {self._ports.index(where)}"] += 1
        return 1

    def close(self) -> None:
        """Ends those that have stayed."""
        while self._open:
            self._open.pop().close()


class Subscribers:
    """Peers of the XPUB that subscribe to more than there is, and say what subscribers never say."""

    def __init__(self, context: zmq.Context[Any], address: str, rng: random.Random) -> None:
        self._context, self._address, self._rng = context, address, rng
        self.sent = 0

    def connection(self, burst: int) -> int:
        """One connection and its messages."""
        one = self._context.socket(zmq.XSUB)
        one.setsockopt(zmq.LINGER, 200)
        one.setsockopt(zmq.SNDHWM, 0)
        one.connect(self._address)
        for _ in range(burst):
            topic = self._rng.randbytes(self._rng.choice((0, 4, 16, 200)))
            one.send(self._rng.choice((b"\x01", b"\x01", b"\x01", b"\x00", b"\x02", b"")) + topic)
        self.sent += burst
        one.close()
        return burst


class Side:
    """Callers of the socket beside the addresses, with and without descriptors; now and then a whole channel, whose ring is broken in the end."""

    def __init__(self, name: str, framed: Framed, context: zmq.Context[Any], door: str, rng: random.Random) -> None:
        self._name, self._framed, self._context, self._door, self._rng = name, framed, context, door, rng
        self.sent: Counter[str] = Counter()

    def connection(self) -> int:
        """One caller and its packets; returns how many."""
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        caller.settimeout(_ANSWER_S)
        caller.connect(f"\0{self._name}")
        packets = 0
        with contextlib.closing(caller):
            for _ in range(self._rng.randrange(1, 6)):
                packet, fds = self._packet()
                packets += 1
                try:
                    if not packet:
                        return packets  # an empty one ends it
                    caller.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
                    answered = caller.recv(1 << 16)
                except TimeoutError:
                    raise Stalled("the socket beside the addresses does not answer") from None
                except OSError:  # the server has ended it
                    answered = b""
                finally:
                    for fd in fds:
                        os.close(fd)
                self.sent["answered" if answered else "ended"] += 1
                if not answered:
                    break
        return packets

    def _packet(self) -> tuple[bytes, list[int]]:
        rng = self._rng
        fds = [os.memfd_create("fuzz") if rng.random() < 0.5 else os.open("/dev/null", os.O_RDWR) for _ in range(rng.choice((0, 0, 1, 1, 2, 12)))]
        number = lambda: rng.choice((*EDGES, 1 << 15, 1 << 20, -1, 1.5, None, "x", True))  # noqa: E731
        kind = rng.randrange(6)
        if kind == 0:
            return rng.choice((rng.randbytes(rng.randrange(300)), rng.choice(METAS)[:16000], b"{", b"[]", bytes(20_000))), fds
        ask = rng.choice(("channel", "channel", "publish", "fetch", "what", 7, None))
        request = {
            "ask": ask,
            "link": rng.choice(("door", "draw", "x", 3)),
            "identity": rng.choice(("00" * 16, "zz" * 16, 5)),
            "topic": rng.choice(("fuzz", 3)),
        }
        request |= {name: number() for name in ("up", "down", "slots", "slot_bytes", "size", "newer_than")}
        return json.dumps(request).encode(), fds

    def channel(self, messages: int = 60) -> int:
        """A channel as clients have one: real frames, mutated, through its ring, which then says what cannot be."""
        rng, identity = self._rng, b"f" + self._rng.randbytes(15)
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.ROUTING_ID, identity)
        dealer.connect(self._door)
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        caller.settimeout(_ANSWER_S)
        caller.connect(f"\0{self._name}")
        plan = Plan.of(1 << 16, 1 << 16, 0, 0)
        memory = MemoryFile.make(plan.bytes)
        framed = self._framed
        try:
            hello = Message(Kind.HELLO, 1, meta={"role": "actor", "name": "fuzz-ring", "pid": 1, "host": "h", "envs": 1, "versions": {}, "epoch": ""})
            seeds = Seeds(framed._ask(dealer, hello, Kind.WELCOME).meta, rng)
            request = {"ask": "channel", "link": "door", "identity": identity.hex(), **plan._asdict()}
            socket.send_fds(caller, [json.dumps(request).encode()], [memory.fd])
            if not caller.recv(1 << 14):
                raise Stalled("a channel was not taken")
            self.sent["answered"] += 1
            framed._ask(dealer, Message(Kind.SHARED), Kind.SHARED)
            up, down = plan.rings(memory)
            for seq in range(2, messages):
                frames = mutated(rng.choice(seeds.door), seq, rng)
                if len(frames) != 1 or not 0 < len(frames[0]) < up.most:
                    continue
                began = time.monotonic()
                while not up.push(frames[0]):
                    caller.send(b"\0")
                    if time.monotonic() - began > _ANSWER_S:
                        raise Stalled("a ring is not read")
                framed.sent[fate(frames)] += 1
                while down.front() > 0:
                    down.pop()
            caller.send(b"\0")
            self._drained(memory, caller)
            # At last, positions that cannot be: what comes after is not looked at. (ring_fuzz.cc has those that can.)
            for at in (0, plan.down_at + 64):
                memory.bytes[at : at + 8] = memoryview(rng.choice((63, 255, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)).to_bytes(8, "little"))
            caller.send(b"\0")
            return messages
        finally:
            caller.close()
            memory.close()
            dealer.close(0)

    def _drained(self, memory: Any, caller: socket.socket) -> None:
        # The server has read what was written: positions are the first two words of a ring's head, a line apart.
        began = time.monotonic()
        words = memory.bytes[:128].view("<u8")
        while words[0] != words[8]:
            if time.monotonic() - began > _ANSWER_S:
                raise Stalled("a ring is not read")
            with contextlib.suppress(OSError):
                caller.send(b"\0")
            time.sleep(0.001)
