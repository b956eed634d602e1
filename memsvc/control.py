"""gRPC: server info, table info, changes of settings, health and reflection (proto/control.proto). Imported only where control is on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from memsvc_proto import wire
from memsvc_proto.errors import ConfigError, ServerError

from .address import Address
from .permits import interceptor, server_credentials

try:
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
    from memsvc_proto import control_pb2, control_pb2_grpc
except ImportError as error:
    raise ConfigError(
        f"server.control: gRPC is not installed ({error}); pip install 'memsvc[server]', or switch it off with control = \"\"", path="server.control"
    ) from error

if TYPE_CHECKING:
    from .guard import Guard
    from .server import Server

log = logging.getLogger("memsvc")

pb: Any = control_pb2  # its classes come into being at import, where no checker sees them
pb_grpc: Any = control_pb2_grpc

_SERVICE = "memsvc.v1.Control"
_THREADS = 4
_COUNTERS = (
    *("items", "population", "min_weight", "drawn", "inserted", "evicted", "stale_updates", "refused_updates", "waiting", "starved"),
    *("aged", "deleted", "exhausted", "put_back", "in_flight", "deliveries", "age_steps"),
    *("feedback_bytes", "told_bytes", "changes_bytes", "notes_bytes"),
)
_OF_ACTORS = (
    *("name", "population", "queue", "drawn", "received", "left", "starved"),
    *("steps", "episodes", "short_episodes", "stale", "age_steps"),
)


class Control:
    """A running gRPC server. Thread-safe."""

    def __init__(self, server: Server, where: Address, guard: Guard | None = None) -> None:
        """Binds `where` and serves; with a guard by TLS, to who has a certificate of its authority. Raises ConfigError when it is in use."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="memsvc-control")
        # Without so_reuseport = 0 a second server would share the port in silence.
        asked = () if guard is None else (interceptor(guard),)
        self._grpc = grpc.server(self._pool, interceptors=asked, options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_ControlServicer_to_server(_Servicer(server), self._grpc)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._grpc)
        try:
            at = where.numeric().host_port
            port = self._grpc.add_insecure_port(at) if guard is None else self._grpc.add_secure_port(at, server_credentials(guard))
        except (RuntimeError, OSError):
            port = 0
        if not port:
            self._grpc.stop(None)
            raise ConfigError(
                f"server.control: {where.host_port} cannot be bound: it is in use, or this machine has no such address; "
                f'choose another (port 0 picks a free one; "" switches gRPC off)',
                path="server.control",
            )
        self.address = where.at(port).host_port
        """`host:port` with the real port."""
        self._grpc.start()
        for service in ("", _SERVICE):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Tells health watchers, then ends; waits at most half a second for calls that run."""
        self._health.enter_graceful_shutdown()
        self._grpc.stop(0.2).wait(0.5)
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Servicer:
    def __init__(self, server: Server) -> None:
        self._server = server

    def ServerInfo(self, request: Any, context: Any) -> Any:
        """See control.proto."""
        return _answered(context, self._server_info)

    def TableInfo(self, request: Any, context: Any) -> Any:
        """See control.proto."""
        index = self._index(request.name, context)
        return _answered(context, lambda: self._table_info(index))

    def Configure(self, request: Any, context: Any) -> Any:
        """See control.proto."""
        index = self._index(request.name, context)
        return _answered(context, lambda: self._configure(index, request.settings_json))

    def Checkpoint(self, request: Any, context: Any) -> Any:
        """See control.proto."""
        try:
            return pb.CheckpointReply(**self._server.checkpoint())
        except ConfigError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ServerError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _index(self, name: str, context: Any) -> int:
        names = [table.name for table in self._server.engine.tables]
        if name not in names:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no table {name!r}; there are: {', '.join(names)}")
        return names.index(name)

    def _configure(self, index: int, text: str) -> Any:
        try:
            changes = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f'settings_json: expected JSON such as {{"priority.exponent": 0.5}}: {error}') from None
        engine = self._server.engine
        engine.configure(engine.tables[index], changes)
        return self._table_info(index)

    def _server_info(self) -> Any:
        from . import __version__

        stats = self._server.stats()
        return pb.ServerInfoReply(
            version=__version__,
            wire_version=wire.VERSION,
            **{key: stats[key] for key in ("epoch", "address", "draw", "params", "pid", "uptime_s", "steps", "capacity_steps", "seed")},
            memory_bytes=self._server.config.server.memory,
            schema=[_field(*one) for one in self._server.config.schema],
            tables=[table["name"] for table in self._server.config.tables],
            clients=[pb.Client(**{key: peer[key] for key in ("role", "name", "host", "pid", "silent_s")}) for peer in stats["peers"]],
            parameters={topic: one["version"] for topic, one in stats["parameters"].items()},
        )

    def _table_info(self, index: int) -> Any:
        table = self._server.engine.tables[index]
        stats = self._server.stats()["tables"][index]
        limiter = stats["limiter"]
        return pb.TableInfoReply(
            name=table.name,
            settings_json=json.dumps(table.settings),
            columns=[_field(*one) for one in table.spec.columns],
            total_weight=stats["total"],
            **{key: stats[key] for key in _COUNTERS},
            limiter=None if limiter is None else pb.Limiter(**{key: limiter[key] for key in ("inserted", "sampled", "ahead")}),
            actors=[pb.Source(total_weight=one["total"], **{key: one[key] for key in _OF_ACTORS}) for one in stats["actors"]],
        )


def _answered(context: Any, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ConfigError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Exception as error:  # told to the caller, and serving goes on
        log.exception("a control request failed")
        context.abort(grpc.StatusCode.INTERNAL, f"the server failed: {type(error).__name__}: {error}")


def _field(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    return pb.Field(name=name, dtype=dtype, shape=shape)
