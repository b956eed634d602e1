"""Turn: threads share a learner by taking turns at its links."""

from __future__ import annotations

import threading
from collections.abc import Callable

from memsvc_proto.errors import Closed

_AGAIN_S = 0.02  # a wake may have hit a thread that was between two receives


class Turn:
    """`with turn:` gives the links to one thread, and makes another that only waits for a message step aside at once (`wake` interrupts its receive).

    `with turn.patient:` is the same for a thread that is about to wait itself: it interrupts nobody. Neither may be nested.
    """

    def __init__(self, wake: Callable[[], None], owner: str) -> None:
        self.patient = Patient(self)
        self._wake = wake
        self._owner = owner
        self._ended = False
        # Whoever waits for the lock holds the gate, so the thread that let go of the lock cannot take it again first.
        self._gate = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._wake()
            with self._gate:
                while not self._lock.acquire(timeout=_AGAIN_S):
                    self._wake()
        self._check()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def end(self, timeout: float) -> bool:
        """From now on threads that wait or ask for the turn get Closed. True: the caller has the last one; False: it was not got in time."""
        self._ended = True
        self._wake()
        return self._lock.acquire(timeout=timeout)

    def _wait(self) -> None:
        with self._gate:
            self._lock.acquire()
        self._check()

    def _check(self) -> None:
        if self._ended:
            self._lock.release()
            raise Closed(f"{self._owner} is closed")


class Patient:
    """The context manager behind `Turn.patient`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._turn._wait()

    def __exit__(self, *exception: object) -> None:
        self._turn.__exit__()
