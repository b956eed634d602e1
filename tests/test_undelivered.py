"""A batch that was not delivered is put back (DEFINITIONS 9): over real connections, whichever way its learner is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from memsvc_client import Actor, Learner, NotReady
from network import Proxies
from serving import config, until

import memsvc

ITEMS, BATCH, PREFETCH = 64, 4, 3
STEP = {"id": {"dtype": "int64"}}
QUEUE = {
    "name": "queue",
    "actor": {"select": "all", "linger_ms": 1},
    "sampler": "fifo",
    "priority": {"source": "given", "exponent": 1.0},
    "limits": {"max_times_sampled": 1},
}


@pytest.fixture
def server() -> Iterator[Any]:
    with memsvc.Server(config("tcp://127.0.0.1:0", QUEUE, step=STEP)) as one:
        yield one


def fill(server: Any, items: int = ITEMS, start: int = 0) -> None:
    """Items with ids from `start` on."""
    with Actor(server.endpoint) as actor:
        for number in range(start, start + items):
            actor.add(id=number, priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(10)


def rest(server: Any) -> list[int]:
    """Ids of all items that are left, or come back within the time that it takes to notice a loss, sorted."""
    found: list[int] = []
    with Learner(server.address, batch_size=BATCH, prefetch=0) as learner:

        def none_left() -> bool:
            with contextlib.suppress(NotReady):
                found.extend(learner.sample(timeout=0.5)["id"].tolist())
            return counts(server)["items"] == 0

        until(none_left, 30)
    return sorted(found)


def counts(server: Any) -> dict[str, int]:
    table = server.stats()["tables"][0]
    return {name: table[name] for name in ("items", "deliveries", "in_flight", "exhausted")}


LEARNER = f"""
    import sys
    from memsvc_client import Learner
    learner = Learner(sys.argv[1], batch_size={BATCH}, prefetch={PREFETCH})
    print(*learner.sample(timeout=10)["id"], learner.stats()["transport"], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("shared", ["1", "0"])
def test_what_a_killed_learner_had_prefetched_goes_to_another_one(server: Any, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server)
    monkeypatch.setenv("MEMSVC_SHARED", shared)
    command = [sys.executable, "-c", textwrap.dedent(LEARNER), server.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as learner:
        assert learner.stdout is not None
        *ids, transport = learner.stdout.readline().split()
        assert transport == ("shared" if shared == "1" else "socket")
        until(lambda: counts(server)["deliveries"] == PREFETCH and counts(server)["exhausted"] == BATCH)
        learner.kill()
    assert ids == ["0", "1", "2", "3"]
    assert rest(server) == list(range(BATCH, ITEMS)), "what it had returned is gone, what it had asked for is not"
    until(lambda: counts(server) == {"items": 0, "deliveries": 0, "in_flight": 0, "exhausted": ITEMS})


def test_what_a_cut_connection_held_goes_to_another_learner(server: Any) -> None:
    fill(server)
    with Proxies(server.address) as network, Learner(network.endpoint(), batch_size=BATCH, prefetch=PREFETCH) as learner:
        first = learner.sample(timeout=10)["id"].tolist()
        until(lambda: counts(server)["deliveries"] == PREFETCH and counts(server)["exhausted"] == BATCH)
        network.cut(refuse=True)
        assert first + rest(server) == list(range(ITEMS))
        network.resume()
        # What it had prefetched may have reached it: then it is returned, and was given to both (memsvc/README.md).
        fill(server, BATCH, start=ITEMS)
        found = until(lambda: [batch for batch in [learner.sample(timeout=20)["id"].tolist()] if batch[0] >= ITEMS])[0]
        assert found == list(range(ITEMS, ITEMS + BATCH))


def test_a_batch_that_came_too_late_and_was_never_returned_is_put_back(server: Any) -> None:
    fill(server)
    with Proxies(server.address) as network:
        learner = Learner(network.endpoint(), batch_size=BATCH, prefetch=0)
        assert learner.sample(timeout=10)["id"].tolist() == [0, 1, 2, 3]
        network.drop("down")
        with pytest.raises(NotReady):
            learner.sample(timeout=0.5)
        until(lambda: counts(server)["deliveries"] == 1)
        network.resume()
        learner.close()
    assert rest(server) == list(range(BATCH, ITEMS))
    assert counts(server)["exhausted"] == ITEMS


def test_a_batch_that_came_too_late_is_the_next_calls(server: Any) -> None:
    fill(server)
    with Proxies(server.address) as network, Learner(network.endpoint(), batch_size=BATCH, prefetch=0) as learner:
        network.freeze()
        with pytest.raises(NotReady):
            learner.sample(timeout=0.3)
        network.resume()
        found = [number for _ in range(ITEMS // BATCH) for number in learner.sample(timeout=20)["id"].tolist()]
        assert found == list(range(ITEMS))
        until(lambda: counts(server)["exhausted"] == ITEMS)
