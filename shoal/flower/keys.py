"""Who a member is: a key pair that never leaves its node, signatures over every reply, and the
certificates of a federation of one's own."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.core.errors import UserError

# ---- keys ----
CONTEXT = b"shoal reply 1\n"


@dataclass(frozen=True)
class Key:
    """A private key on a node's disk."""

    private: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> bytes:
        """The public half as PEM, which is what the federation knows a member by."""
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, frame: bytes) -> bytes:
        return self.private.sign(CONTEXT + frame, ec.ECDSA(hashes.SHA256()))


def signed_by(public: bytes, frame: bytes, signature: bytes) -> bool:
    """Whether the owner of ``public`` signed these very bytes."""
    try:
        key = serialization.load_pem_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, CONTEXT + frame, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def fingerprint(public: bytes) -> str:
    """A short name of a public key.

    >>> fingerprint(b"abc")
    'ba7816bf8f01'
    """
    return hashlib.sha256(public).hexdigest()[:12]


def new_key(path: Path) -> Key:
    """A new key pair: ``path`` readable by its owner only, ``path.pub`` for everybody."""
    key = Key(ec.generate_private_key(ec.SECP384R1()))
    private = key.private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,  # what a stock SuperNode reads
        serialization.NoEncryption(),
    )
    write_secret(path, private)
    openssh = key.private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    public_file(path).write_bytes(openssh + b"\n")
    return key


def public_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def read_key(path: Path) -> Key:
    """The private key in a file; one that others can read is refused."""
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError:
        raise UserError(f"there is no key {path}; make one with: shoal flower key {path}") from None
    if os.name != "nt" and mode & 0o077:
        raise UserError(f"{path} can be read by others than its owner; set it to 0600: "
                        f"chmod 600 {path}")  # fmt: skip
    openssh = b"OPENSSH PRIVATE KEY" in content[:60]
    read = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        found = read(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{path} is no private key (OpenSSH or PEM, not encrypted)") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is no elliptic-curve key; make one with: shoal flower key")
    return Key(found)


def read_public(path: Path) -> bytes:
    """The public key in an OpenSSH or PEM file, as PEM."""
    try:
        content = path.read_bytes()
        load = (
            serialization.load_pem_public_key
            if content.startswith(b"-----")
            else serialization.load_ssh_public_key
        )
        key = load(content)
    except (OSError, ValueError, UnsupportedAlgorithm):
        raise UserError(f"{path} is no public key (a .pub file of shoal flower key)") from None
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def write_secret(path: Path, content: bytes) -> None:
    """A new file that nobody but its owner could read at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


# ---- certificates ----
DAYS = 365


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """``ca.crt``, ``server.crt`` and ``server.key`` for these host names and addresses.

    The authority's private key is not written anywhere: nobody can issue a second certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = _name("shoal federation authority")
    ca = (
        _builder(root, root, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False)
        .sign(authority, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        _builder(_name(hosts[0]), root, server.public_key())
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    secret = server.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_secret(folder / "server.key", secret)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
