"""memsvc_client: the light client of memsvc. It needs numpy, pyzmq and safetensors, and imports no framework, grpc or protobuf."""

from memsvc_proto.errors import (
    Closed,
    ConfigError,
    Forbidden,
    MemsvcError,
    NotReady,
    PriorityError,
    ProtocolError,
    SchemaError,
    ServerError,
    TimedOut,
    UnknownTable,
    Unreachable,
    UsedAfterFork,
    WindowFull,
)

from .actor import Actor
from .batch import Batch
from .endpoint import ZmqEndpoint
from .learner import Learner
from .mixing import mixed_priorities
from .params import Params
from .pusher import Unsent
from .seam import Endpoint, Link

__all__ = [
    "Actor",
    "Batch",
    "Closed",
    "ConfigError",
    "Endpoint",
    "Forbidden",
    "Learner",
    "Link",
    "MemsvcError",
    "NotReady",
    "Params",
    "PriorityError",
    "ProtocolError",
    "SchemaError",
    "ServerError",
    "TimedOut",
    "UnknownTable",
    "Unreachable",
    "Unsent",
    "UsedAfterFork",
    "WindowFull",
    "ZmqEndpoint",
    "mixed_priorities",
]
