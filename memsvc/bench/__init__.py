"""`memsvc bench`: measures throughput and latency of a server with actors and learners at work, by what arrived."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memsvc_proto.errors import ConfigError

from ..children import ChildFailed, interrupts
from ..config import Config
from ..display import Display
from . import machine, report
from .crew import Processes, Source, Threads
from .figures import figures
from .meter import Meter
from .options import Options
from .watch import Count, Watch
from .work import Plan
from .workloads import WORKLOADS

_SHOW_S = 0.05
_LOOK_S = 0.25
_SETTLE_S = 0.3
_BATCH_BYTES = 16 << 20
_LAST_LINES_S = 5.0
_SHARE_S = 2.0  # within which clients on one host have shared memory


def run(options: Options, argv: list[str] | None = None) -> int:
    """Measures, shows the state while it does, prints one table; returns 0, or 130 when interrupted (Ctrl-C, SIGTERM, SIGHUP).

    `argv`: the command as it was given, for the rows. Raises ConfigError (an option, a setting, or a server that must not be written to),
    Unreachable, ChildFailed (a process ended by itself). No process and no file but those asked for is left behind in any case.
    """
    bench = Bench(options)
    with Display(f"memsvc bench {bench.name}", options.plain) as display, interrupts() as interrupted:
        try:
            row = bench.measure(display, interrupted)
        except KeyboardInterrupt:
            display.say("interrupted; every process of the benchmark has ended")
            return 130
    row |= {"command": shlex.join(["memsvc", *(argv or ["bench"])])}
    print("\n".join(report.lines(row)), flush=True)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(row) + "\n")
    if options.plot is not None:
        from . import plot

        plot.save(row, report.lines(row)[0], Path(options.plot))
    return 0


class Bench:
    """One run. Raises as `run`, KeyboardInterrupt."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._workload = None if options.config or options.address else WORKLOADS[options.workload or "pixels"]
        if self._workload is not None and options.items is not None:
            self._workload = self._workload.of(options.items)
        self.name = options.config or options.address or options.workload or "pixels"
        """Of what is measured."""
        if options.config is not None:
            self._source("tcp://127.0.0.1:0")

    def measure(self, display: Display, interrupted: threading.Event) -> dict[str, Any]:
        """The row of --json but for its command."""
        options = self._options
        about = {
            "date": machine.now(),
            "version": importlib.metadata.version("memsvc"),
            "machine": machine.describe(),
            "workload": self.name,
            **{key: getattr(options, key) for key in ("transport", "actors", "learners", "prefetch", "update", "seconds")},
        }
        memcpy = [machine.memcpy_rate()]

        def check() -> None:
            if interrupted.is_set():
                raise KeyboardInterrupt

        began = time.monotonic()
        with ExitStack() as stack:
            crew = self._crew(check)
            stack.callback(crew.close)
            watch = Watch(crew.endpoint, options.table, check)
            stack.callback(watch.close)
            self._permit(watch)
            told = f"table {watch.table!r} at {crew.address}"
            effect = self._effect(watch)
            display.say(f"{'measuring' if options.address else 'an own server has'} {told}" + (f"; this run{effect}" if effect else ""))
            actors, learners = self._plans(watch, crew.address)
            meter = Meter(self._batch(watch), sum(plan.fill for plan in actors))

            def turn(until: Callable[[], bool]) -> None:
                due = 0.0
                while not until():
                    check()
                    crew.check()
                    while not crew.lines.empty():
                        meter.take(*crew.lines.get())
                    if time.monotonic() >= due:
                        due = time.monotonic() + _LOOK_S
                        meter.look(watch.count())
                        display.show(meter, time.monotonic() - began)
                    time.sleep(min(_SHOW_S, options.seconds / 4))

            for role, plans in (("actor", actors), ("learner", learners)):
                for plan in plans:
                    crew.start(plan)
                turn(_all_working(meter, role, len(plans)))
            if options.transport == "shm":
                self._shared(meter, turn)
            settled = time.monotonic() + min(_SETTLE_S, options.seconds)
            turn(lambda: time.monotonic() >= settled)
            pids = crew.pids() if options.address is None else crew.pids() | _server_of(watch)
            before, begin = _cpu(pids), watch.count()
            meter.look(begin)
            turn(lambda: time.monotonic() >= begin.time + options.seconds)
            after, end = _cpu(pids), watch.count()
            meter.look(end)
            self._last_lines(meter, end, turn)
        memcpy.append(machine.memcpy_rate())
        found = figures(
            meter,
            watch,
            begin,
            end,
            self._batch(watch),
            sum(memcpy) / len(memcpy),
            {role: after[role] - before[role] for role in after},
            {"actor": options.actors, "learner": options.learners},
        )
        if options.address is not None and options.actors:
            display.say(f"into {told} it has written {meter.total('actor', 'steps', end.time):,.0f} steps of random experience")
        return about | {"batch": self._batch(watch), "envs": self._envs(watch), "server_cpu": bool({"daemon", "all"} & set(pids))} | found

    def _crew(self, check: Callable[[], None]) -> Processes | Threads:
        options = self._options
        if options.transport == "inproc":
            return Threads(self._source)
        source: Source | None = None if options.address else self._source
        return Processes(source, options.address or "", options.transport == "ipc", options.transport not in ("ipc", "tcp"), check)

    def _source(self, address: str) -> tuple[str, Config]:
        options = self._options
        if self._workload is not None:
            text = self._workload.config(address, max(1, options.actors))
            return text, Config.parse(text)
        try:
            file = str(options.config)
            config = Config.load(file, {"server.address": address, "server.control": "", "server.advertise": ""})
            return Path(file).read_text(), config
        except OSError as error:
            raise ConfigError(f"--config {options.config}: {error.strerror}; name a file as `memsvc serve` takes it") from None

    def _permit(self, watch: Watch) -> None:
        """Refuses what would measure nothing, and what would spoil somebody's table unasked."""
        options = self._options
        if watch.waits and (not options.actors or (not options.learners and watch.waits != "limits.max_times_sampled")):
            left = "learners" if options.actors else "actors"
            raise ConfigError(f"--{left} 0: table {watch.table!r} has {watch.waits}, so that one side waits for the other; leave --{left} 0 out")
        if options.address is None:
            return
        held = watch.held()
        if not held and not options.actors:
            raise ConfigError(f"--actors 0: the server at {options.address} holds nothing to draw; leave it out, or fill its tables first")
        if not options.actors and not watch.whole and not watch.players():
            raise ConfigError(f"--actors 0: table {watch.table!r} is drawn from its actors' caches, and no actor is there; leave it out")
        effect = self._effect(watch)
        if held and effect and not options.yes:
            raise ConfigError(
                f"--address {options.address}: the server holds {held:,} items, and this run{effect}; add --yes if that may be, "
                f"or measure draws alone with --actors 0"
            )

    def _effect(self, watch: Watch) -> str:
        """What the run does to a server that was there before; "" for nothing, or for a server of its own."""
        options = self._options
        if options.address is None:
            return ""
        does = ["inserts random experience into all of its tables"] if options.actors else []
        does += ["gives items random priorities"] if options.update else []
        limits = watch.settings["limits"]
        if options.learners and (limits["samples_per_insert"] or limits["max_times_sampled"]):
            does.append("draws batches that count for its limits")
        others = watch.others()
        beside = f" (beside {others} other client{'s' * (others > 1)}, whose items count too)" if others else ""
        return f" {' and '.join(does)}{beside}" if does else ""

    def _plans(self, watch: Watch, address: str) -> tuple[list[Plan], list[Plan]]:
        options = self._options
        envs = self._envs(watch)
        foreign = options.address is not None
        players = options.actors if foreign else max(1, options.actors)
        fill = 0 if foreign and watch.held() else watch.fill_steps(max(1, players), envs)
        own = {"address": address, "table": watch.table, "fields": watch.fields, "given": watch.given, "unit": tuple(watch.unit)}
        playing: Mapping[str, Any] = own | {"envs": envs, "episode": watch.episode, "fill": fill, "idle": not options.actors}
        drawing: Mapping[str, Any] = own | {"batch": self._batch(watch), "prefetch": options.prefetch, "update": options.update}
        actors = [Plan(role="actor", number=number, **playing) for number in range(players)]
        return actors, [Plan(role="learner", number=number, **drawing) for number in range(options.learners)]

    def _envs(self, watch: Watch) -> int:
        return self._options.envs or (self._workload.envs if self._workload else watch.envs())

    def _batch(self, watch: Watch) -> int:
        return self._options.batch or (self._workload.batch if self._workload else max(1, min(256, _BATCH_BYTES // max(1, watch.item_bytes))))

    def _shared(self, meter: Meter, turn: Callable[[Callable[[], bool]], None]) -> None:
        """Waits until everybody shares memory with the server; ConfigError where somebody does not."""
        roles = [role for role, number in (("actor", self._options.actors), ("learner", self._options.learners)) if number]
        deadline = time.monotonic() + _SHARE_S
        turn(lambda: all(meter.transports(role) == ["shared"] for role in roles) or time.monotonic() > deadline)
        for role in roles:
            paths = [path for path in meter.transports(role) if path != "shared"]
            if paths:
                raise ConfigError(f"--transport shm: {role}s reach this server by {', '.join(paths)}, not by shared memory; see what auto gives")

    def _last_lines(self, meter: Meter, end: Count, turn: Callable[[Callable[[], bool]], None]) -> None:
        # A count at the end lies between two lines of each worker, so the later one has to come.
        roles = [role for role, number in (("actor", self._options.actors), ("learner", self._options.learners)) if number]
        deadline = end.time + _LAST_LINES_S
        turn(lambda: all(meter.heard(role, end.time) for role in roles) or time.monotonic() > deadline)


def _all_working(meter: Meter, role: str, number: int) -> Callable[[], bool]:
    return lambda: meter.working(role) >= number


def _server_of(watch: Watch) -> dict[str, list[int]]:
    pid = watch.pid()
    return {} if pid is None else {"daemon": [pid]}


def _cpu(pids: Mapping[str, list[int]]) -> dict[str, float]:
    try:
        return {role: machine.cpu_seconds(those) for role, those in pids.items()}
    except OSError as error:
        raise ChildFailed(f"a process of the run has ended: {error}") from None
