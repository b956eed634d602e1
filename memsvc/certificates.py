"""Certificates for gRPC: an authority of one server's own, and what it signs. Imported only where keys are made; needs `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .permits import SERVER_NAME, subject_of

_YEARS = 10


class Authority:
    """Signs. Its secret is needed to make keys, and for nothing else."""

    def __init__(self, private: str | None = None, certificate: str | None = None) -> None:
        """A new one, or that of these PEM texts."""
        if private is None or certificate is None:
            self._private = ec.generate_private_key(ec.SECP256R1())
            name = _name("memsvc authority")
            built = _builder(name, name, self._private.public_key()).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            self._certificate = built.add_extension(_usage(signs=True), critical=True).sign(self._private, hashes.SHA256())
            return
        loaded = serialization.load_pem_private_key(private.encode(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not one of an elliptic curve")
        self._private = loaded
        self._certificate = x509.load_pem_x509_certificate(certificate.encode())

    @property
    def private(self) -> str:
        """PEM."""
        return _private_pem(self._private)

    @property
    def certificate(self) -> str:
        """PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def server(self, hosts: Sequence[str]) -> tuple[str, str]:
        """(private key, certificate) of a server, PEM. `hosts`: names and addresses by which tools that check them may reach it."""
        names: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME)]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        return self._sign("memsvc server", names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str, public: str) -> tuple[str, str]:
        """(private key, certificate) of the holder of a CURVE key, PEM. The certificate names that key; its role stands in `allowed` alone."""
        return self._sign(name, [x509.UniformResourceIdentifier(subject_of(public))], ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(self, name: str, names: list[x509.GeneralName], use: x509.ObjectIdentifier) -> tuple[str, str]:
        private = ec.generate_private_key(ec.SECP256R1())
        built = _builder(_name(name), self._certificate.subject, private.public_key())
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(_usage(signs=False), critical=True).add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        signed = built.sign(self._private, hashes.SHA256())
        return _private_pem(private), signed.public_bytes(serialization.Encoding.PEM).decode()


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=366 * _YEARS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(private: ec.EllipticCurvePrivateKey) -> str:
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return private.private_bytes(encoding, kind, serialization.NoEncryption()).decode()
