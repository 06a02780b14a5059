"""Certificates of a test's own, and TLS in front of a relay that has none."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates; whoever has its own (`path`) accepts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        self.path = folder / "authority.pem"
        self.path.write_bytes(self._sign(self._name, self._key, _year(-1), _year(1), None))

    def certificate(self, host: str, begin: datetime | None = None, end: datetime | None = None) -> Path:
        """A file with a certificate for `host` and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        path = self._folder / f"{host}-{len(list(self._folder.iterdir()))}.pem"
        path.write_bytes(self._sign(name, key, begin or _year(-1), end or _year(1), host) + _pem(key))
        return path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime, host: str | None
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if host is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class TlsFront:
    """`async with` it: a TLS server on `port` that passes everything on to `target`, with a certificate to be set."""

    def __init__(self, certificate: Path, target: int) -> None:
        self._target = target
        self.port = 0
        self.use(certificate)

    def use(self, certificate: Path) -> None:
        """For connections from now on."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TlsFront]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await writer.start_tls(self._context)
            await splice(reader, writer, self._target)
        except OSError:
            writer.transport.abort()


async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Copies both ways between this connection and a new one to `port`, until either ends."""
    there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
    copies = [
        asyncio.create_task(_copy(reader, there_writer)),
        asyncio.create_task(_copy(there_reader, writer)),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for end in (writer, there_writer):
            end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def _year(count: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=365 * count)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
