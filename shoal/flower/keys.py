"""Who a member is: a key pair that never leaves its node, and signatures over every reply."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.errors import UserError

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
