"""gRPC with keys: TLS that asks for a certificate, and whether its holder may call what it calls. What a client needs for that stands here too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsvc_proto.errors import Forbidden
from zmq.utils import z85

from .roles import check_method

if TYPE_CHECKING:
    from memsvc_client.credentials import Credentials

    from .guard import Guard

SERVER_NAME = "memsvc-server"
"""The name in every server's certificate: clients trust the authority in their key file, whatever the address."""
_SUBJECT = "memsvc:key/"


def subject_of(public: str) -> str:
    """What the certificate of a CURVE key's holder is made out to."""
    return _SUBJECT + z85.decode(public.encode()).hex()


def server_credentials(guard: Guard) -> Any:
    """For add_secure_port."""
    import grpc

    own = guard.own
    return grpc.ssl_server_credentials([(own.private, own.certificate)], root_certificates=own.authority, require_client_auth=True)


def control_channel(address: str, own: Credentials | None) -> Any:
    """A gRPC channel to a server's control address, for the commands of this package; with credentials by TLS."""
    import grpc

    if own is None:
        return grpc.insecure_channel(address)
    secure = grpc.ssl_channel_credentials(own.authority, own.private, own.certificate)
    return grpc.secure_channel(address, secure, options=[("grpc.ssl_target_name_override", SERVER_NAME)])


def interceptor(guard: Guard) -> Any:
    """Asks, before each call, whether the certificate's holder may make it. What METHODS does not name is an admin's."""
    import grpc

    def checked(method: str, act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def behave(request: Any, context: Any) -> Any:
            try:
                check_method(guard.holder(_public_of(context.auth_context())), method)
            except Forbidden as error:
                guard.forbid(error, context.peer())
                context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
            return act(request, context)

        return behave

    class Interceptor(grpc.ServerInterceptor):  # type: ignore[misc]
        def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
            handler = continuation(details)
            if handler is None:
                return None
            for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
                act = getattr(handler, kind)
                if act is not None:
                    make = getattr(grpc, f"{kind}_rpc_method_handler")
                    return make(checked(details.method, act), handler.request_deserializer, handler.response_serializer)
            return None

    return Interceptor()


def _public_of(told: Any) -> str:
    # The CURVE key that a certificate names, "" where it names none. The authority has signed it: it is believed.
    for name in told.get("x509_subject_alternative_name", ()):
        if name.startswith(_SUBJECT.encode()):
            try:
                return str(z85.encode(bytes.fromhex(name.decode()[len(_SUBJECT) :])).decode())
            except (ValueError, UnicodeDecodeError):
                return ""
    return ""
