"""One process of a server's attackers: all senders, and the order in which they take their turns (live.py starts some).

python attackers.py ADDRESSES SEED          reads numbers of messages, a line each; answers each with JSON when those have been sent
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from typing import Any

import zmq
from mutate import METAS
from senders import BURST, Framed, Raw, Side, Stalled, Subscribers


class Calls:
    """gRPC requests whose settings and names are none."""

    def __init__(self, address: str, rng: random.Random) -> None:
        import grpc
        from memsvc_proto import control_pb2, control_pb2_grpc

        self._rng, self._pb, self._error = rng, control_pb2, grpc.RpcError
        self._channel = grpc.insecure_channel(address)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)
        self.sent: Counter[str] = Counter()

    def call(self) -> int:
        """One request, and its answer's status."""
        rng, pb = self._rng, self._pb
        name = rng.choice(("all", "caches", "", "x" * 10_000, "all\0"))
        text = rng.choice(METAS).decode("utf-8", "replace")
        requests = (
            (self._stub.Configure, pb.ConfigureRequest(name=name, settings_json=text)),
            (self._stub.TableInfo, pb.TableInfoRequest(name=name)),
        )
        call, request = rng.choice(requests)
        try:
            call(request, timeout=30)
            self.sent["OK"] += 1
        except self._error as error:
            self.sent[error.code().name] += 1
        return 1

    def close(self) -> None:
        """Ends the channel."""
        self._channel.close()


class Attack:
    """All senders, and the order in which they take their turns."""

    def __init__(self, addresses: dict[str, str], seed: int) -> None:
        """`addresses`: the ready file's, and "draw", "params" and "beside" of the statistics."""
        rng = random.Random(seed)
        self._rng = rng
        self._context = zmq.Context()
        self.framed = Framed(self._context, addresses, rng, seed)
        ports = [_port(addresses[name]) for name in ("address", "draw", "params", "control")]
        self.raw = Raw(ports, rng)
        self.subscribers = Subscribers(self._context, addresses["params"], rng)
        self.side = Side(addresses["beside"], self.framed, self._context, addresses["address"], rng)
        self.calls = Calls(addresses["control"], rng)

    def run(self, messages: int) -> None:
        """So many, or a few more. Raises Stalled."""
        sent, burst = 0, min(BURST, max(messages // 40, 20))
        while sent < messages:
            choice = self._rng.random()
            if choice < 0.35:
                sent += self.framed.connection("door", burst)
            elif choice < 0.65:
                sent += self.framed.connection("draw", burst)
            elif choice < 0.8:
                sent += sum(self.raw.connection() for _ in range(max(burst // 8, 4)))
            elif choice < 0.88:
                sent += sum(self.side.connection() for _ in range(max(burst // 20, 2)))
            elif choice < 0.94:
                sent += self.side.channel(max(burst // 4, 8))
            elif choice < 0.98:
                sent += self.subscribers.connection(burst)
            else:
                sent += sum(self.calls.call() for _ in range(4))

    def account(self) -> dict[str, Any]:
        """What was sent so far, and what came of it."""
        return {
            "sent": self.framed.sent,
            "answers": self.framed.answers,
            "raw": self.raw.sent,
            "side": self.side.sent,
            "calls": self.calls.sent,
            "subscriptions": {"sent": self.subscribers.sent},
            "longest": self.framed.longest,
        }

    def close(self) -> None:
        """Ends what is open."""
        self.raw.close()
        self.calls.close()
        self._context.destroy(0)


def main() -> None:
    """See the module."""
    attack = Attack(json.loads(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        stalled = ""
        try:
            attack.run(int(line))
        except Stalled as error:
            stalled = str(error)
        attack.raw.close()  # who has stayed and said nothing goes too
        print(json.dumps({**attack.account(), "stalled": stalled}), flush=True)
    attack.close()


def _port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
