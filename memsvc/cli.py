"""The command line: `memsvc serve`, `check`, `stats`, `checkpoint`, `set`, `keys`, `demo`, `bench`.

Exit status 0: done; 1: it cannot be; 2: wrong arguments or configuration.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import click
except ImportError:
    sys.exit("memsvc: the command line needs click; pip install 'memsvc[server]'")

from memsvc_proto.errors import ConfigError, MemsvcError

from . import folders
from .config import Config
from .explain import explained
from .machine import checked_footprint, footprint_on_disk, keep_freed_memory, memory_limit, raise_file_limit

_CONFIG_ERROR = 2
_FAILED = 1
_LOOK_S = 0.25
_KEYS = click.option("--keys", envvar="MEMSVC_KEYS", help="A key file of `memsvc keys`, for a server that asks for one; or set MEMSVC_KEYS.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="memsvc")
def main() -> None:
    """A replay-memory service for distributed reinforcement learning."""


@main.command()
@click.argument("file", default="memsvc.toml", type=click.Path(dir_okay=False))
@click.option(
    "--ready-file", type=click.Path(dir_okay=False), help="Write JSON (address, control, http, pid) here once it serves; removed at the end."
)
@click.option("--address", help="server.address: tcp://HOST:PORT (port 0 picks a free one) or ipc://PATH.")
@click.option("--advertise", help="server.advertise: what clients are told instead of the bound address.")
@click.option("--memory", help='server.memory: budget of the step store, as "2GiB".')
@click.option("--control", help='server.control: gRPC\'s HOST:PORT; "" is off.')
@click.option("--durability", help='server.durability: "off", "snapshot" or "journal".')
@click.option("--data", help="server.data: the folder of snapshots and journal.")
@click.option("--keys", help="server.keys: a folder of `memsvc keys`.")
@click.option("--seed", type=int, help="server.seed: 0 takes one from the system.")
@click.option("--insecure", is_flag=True, default=None, help="server.insecure: allow addresses that other machines can reach.")
@click.option(
    "--on-mismatch",
    type=click.Choice(["file", "config"]),
    help="What holds where server.data was written under other steps or tables: the stored ones, or FILE's, and what fits of the tables is kept.",
)
def serve(file: str, ready_file: str | None, on_mismatch: str | None, **flags: Any) -> None:
    """Serve the tables of FILE (default: memsvc.toml) until SIGTERM or SIGINT."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until it serves they end it at once, also while it takes its memory
        signal.signal(number, signal.SIG_DFL)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a port in use is one line of ours, not gRPC's as well
    from .server import Server

    config = _load(file, {f"server.{key}": value for key, value in flags.items()})
    keep_freed_memory()
    files = raise_file_limit()
    log = logging.getLogger("memsvc")
    with _guarded(lambda: Server(config, on_mismatch)) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        about = {"address": server.address, "control": server.control, "http": server.http, "pid": os.getpid()}
        log.info("serving %s on %s, control %s, %d bytes, %d open files at most", ", ".join(t["name"] for t in config.tables), server.address,
                 server.control or "off", config.server.memory, files)  # fmt: skip
        try:
            if ready_file is not None:
                _write_atomically(Path(ready_file), json.dumps(about) + "\n", "--ready-file")
            # The kernel may give a signal to any thread (it does after SIGSTOP), and Python's handler runs when this one wakes up.
            while not stop.wait(_LOOK_S):
                pass
            log.info("ending")
        finally:
            if ready_file is not None:
                Path(ready_file).unlink(missing_ok=True)


@main.command()
@click.argument("file", default="memsvc.toml", type=click.Path(dir_okay=False))
def check(file: str) -> None:
    """Check FILE; print its schema, each table's columns and what its settings amount to, the memory it takes, the ports, who may come, and what lies
    in its data folder.

    Status 1: it does not fit this machine, its keys or its data.
    """
    config = _load(file, {})
    _, specs = config.specs()
    click.echo("step")
    for name, dtype, shape in config.schema:
        click.echo(f"  {name:<20} {dtype:<5} {list(shape)}")
    for table, spec in zip(config.tables, specs, strict=True):
        click.echo(f"table {table['name']} ({table['item']['kind']}, select {table['actor']['select']})")
        for name, dtype, shape in spec.columns:
            click.echo(f"  {name:<20} {dtype:<5} {list(shape)}")
        for topic, sentence in explained(table):
            click.echo(f"  {topic + ':':<12} {sentence}")
    server = config.server
    control = server.control_address
    click.echo(f"address    {server.address}" + (f", announced as {server.advertise}" if server.advertise else ""))
    click.echo(
        "draws, parameter notices: " + ("beside it (.draw, .params)" if server.address.startswith("ipc:") else "free ports, announced to clients")
    )
    click.echo("control    " + ("off" if control is None else f"{control.host_port}" + (" (a free port)" if control.port == 0 else "")))
    click.echo("http       not in this version")
    click.echo("keys       " + _guarded(lambda: folders.keys(config), status=_FAILED))
    footprint = _guarded(lambda: checked_footprint(config), status=_FAILED)
    limit, whose = memory_limit()
    click.echo(f"memory     {footprint['bytes']} bytes for {footprint['steps']} steps of {footprint['step_bytes']} bytes; {whose} is {limit} bytes")
    if server.durability == "off":
        click.echo("disk       none: durability is off")
    else:
        click.echo(f"disk       up to {footprint_on_disk(config):,} bytes, and the parameters, in {server.data} ({server.durability})")
        click.echo("data       " + _guarded(lambda: folders.data(config), status=_FAILED))


@main.command()
@click.argument("address")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for the answer.")
@_KEYS
def stats(address: str, timeout: float, keys: str | None) -> None:
    """Print the statistics of the server at ADDRESS as JSON."""
    from .remote import ask_stats

    click.echo(json.dumps(_guarded(lambda: ask_stats(address, timeout, keys), status=_FAILED), indent=2))


@main.command()
@click.argument("address")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait until it is on disk.")
@_KEYS
def checkpoint(address: str, timeout: float, keys: str | None) -> None:
    """Take a snapshot of the server at ADDRESS now, while it serves; print what was written as JSON once it is on disk."""
    from .remote import checkpoint as take

    click.echo(json.dumps(_guarded(lambda: take(address, timeout, keys), status=_FAILED), indent=2))


@main.command("set")
@click.argument("address")
@click.argument("table")
@click.argument("changes", nargs=-1, required=True, metavar="PATH=VALUE...")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for the answer.")
@_KEYS
def set_(address: str, table: str, changes: tuple[str, ...], timeout: float, keys: str | None) -> None:
    """Change settings of TABLE while the server at ADDRESS runs, as in `priority.exponent=0.5`: all of them or none.

    Prints the table's settings as JSON. `memsvc check` lists the paths that can be changed. The file is not changed: what is to hold after a restart
    belongs there too.
    """
    from .remote import change

    pairs = [one.partition("=") for one in changes]
    for path, equals, _ in pairs:
        if not equals:
            raise _end(f"{path}: expected PATH=VALUE, as in priority.exponent=0.5", _CONFIG_ERROR)
    values = {path: _value(text) for path, _, text in pairs}
    click.echo(json.dumps(_guarded(lambda: change(address, table, values, timeout, keys), status=_FAILED), indent=2))


@main.command("keys")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--add", metavar="NAME", help="One more client's key, in a folder that is there.")
@click.option("--role", type=click.Choice(["actor", "learner", "viewer", "admin"]), help="Of --add.")
@click.option("--host", multiple=True, help="A name or address for the server's certificate, beside localhost; for tools that check it.")
def keys_(folder: str, add: str | None, role: str | None, host: tuple[str, ...]) -> None:
    """Make keys for a server (`server.keys = "DIR"`) and a client of each role, in a new folder DIR; nothing is ever overwritten.

    Give each client its own file (NAME.key, readable by its user alone) and name it by --keys, keys=FILE or MEMSVC_KEYS.
    """
    from . import keys as making

    if (add is None) != (role is None) or (add is not None and host):
        raise _end("--add NAME and --role ROLE go together, without --host", _CONFIG_ERROR)
    path = Path(folder).absolute()
    made = _guarded(lambda: making.make(path, host) if add is None else [making.add(path, add, str(role))], status=_FAILED)
    for one in made:
        click.echo(one)


@main.command()
@click.option("--env", default="CartPole-v1", show_default=True, help="A Gymnasium environment; ALE/Pong-v5 runs on Atari frames.")
@click.option("--seconds", type=float, help="Stop after this time instead of at the goal.")
@click.option("--out", default="memsvc-demo.png", show_default=True, type=click.Path(), help="Where the learning curve goes: a PNG file or a folder.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of environments and networks.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live display.")
def demo(env: str, seconds: float | None, out: str, seed: int, plain: bool) -> None:
    """Daemon, two actors and a PyTorch learner play together on this machine."""
    try:
        from .demo import main as run
    except ImportError as error:
        raise _end(f"the demo needs {error.name or error}; pip install 'memsvc[demo]'", _FAILED) from error
    _for_children(None)
    sys.exit(run(env, seconds, out, seed, plain))


@main.command()
@click.argument("workload", required=False)
@click.option("--config", type=click.Path(dir_okay=False), help="Measure the steps and tables of this memsvc.toml, with random data.")
@click.option("--address", help="Measure a server that runs already, with its own steps and tables; else one is started.")
@click.option("--table", help="The table that learners draw from, where there are several.")
@click.option("--actors", type=int, default=1, show_default=True, help="Processes that insert; 0: the table is filled, then only drawn from.")
@click.option("--learners", type=int, default=1, show_default=True, help="Processes that draw; 0: inserts alone.")
@click.option("--transport", default="auto", show_default=True, help="auto (what clients choose), inproc (threads of one process), shm, ipc or tcp.")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="How long to measure, once everything is filled and warm.")
@click.option("--batch", type=int, help="Items of a batch; default: the workload's.")
@click.option("--update", is_flag=True, help="Learners send a new priority for every item back.")
@click.option("--prefetch", type=int, default=2, show_default=True, help="Batches a learner asks for ahead; 0: each call is a whole round trip.")
@click.option("--envs", type=int, help="Environments of an actor: rows of an add_batch; default: the workload's.")
@click.option("--items", type=int, help="Size of a built-in workload's table.")
@click.option("--json", type=click.Path(), help="Write the figures here, as one JSON object.")
@click.option("--plot", type=click.Path(), help="Write rates over time and latencies here, a PNG; needs memsvc[bench].")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live display.")
@click.option("--yes", is_flag=True, help="With --address: insert, and change priorities, although its tables hold items.")
@_KEYS
def bench(keys: str | None, **options: Any) -> None:
    """Measure throughput and latency of WORKLOAD: pixels (default), vector, sequence or football; what arrived is counted, not what was sent.

    pixels: steps of 4 x 84 x 84 bytes. vector: of 168 bytes. sequence: 80 frames of 84 x 84. football: 3-step transitions of 96 x 72 x 4 frames, held
    and drawn by the actors; in the other three the server holds every item.
    """
    try:
        from .bench import run
        from .bench.options import Options
        from .children import ChildFailed
    except ImportError as error:
        raise _end(f"bench needs {error.name or error}; pip install 'memsvc[bench]'", _FAILED) from error
    _for_children(keys if options["address"] is not None else None)
    try:
        sys.exit(_guarded(lambda: run(Options(**options), sys.argv[1:])))
    except ChildFailed as error:
        raise _end(str(error), _FAILED) from None


def _load(file: str, flags: dict[str, Any]) -> Config:
    try:
        return Config.load(file, flags)
    except FileNotFoundError:
        raise _end(f"{file}: there is no such file; name one, as in `memsvc serve memsvc.toml`", _CONFIG_ERROR) from None
    except (MemsvcError, OSError) as error:
        raise _end(str(error), _CONFIG_ERROR) from None


def _for_children(keys: str | None) -> None:
    # Who is started from here finds its key file, or, with a server of this run's own, none.
    os.environ.pop("MEMSVC_KEYS", None)
    if keys is not None:
        os.environ["MEMSVC_KEYS"] = os.path.abspath(keys)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # the server says what it expects there


def _guarded(act: Callable[[], Any], status: int = _CONFIG_ERROR) -> Any:
    try:
        return act()
    except MemsvcError as error:
        raise _end(str(error), status if isinstance(error, ConfigError) else _FAILED) from None
    except MemoryError:
        raise _end("server.memory: the system does not give that much memory; use less", _FAILED) from None


def _end(message: str, status: int) -> SystemExit:
    click.echo(f"memsvc: {message}", err=True)
    return SystemExit(status)


def _write_atomically(path: Path, text: str, flag: str) -> None:
    # A reader that sees the file sees all of it.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError as error:
        raise _end(
            f"{flag}: {path} cannot be written: {error.strerror}; name a file in a directory that exists and may be written to", _FAILED
        ) from None


if __name__ == "__main__":
    main(prog_name="memsvc")
