"""Signatures of bundles: whoever may sign holds a private key, and a device with the public one takes no other bundle.

What is signed is the manifest, which holds the hash of every file. Needs the package ``cryptography`` (extra
``signing``), which is loaded only where a key is used.
"""

import base64
import binascii
import os
from pathlib import Path
from typing import Any

from l2h.bundle.parts import BundleError
from l2h.errors import SettingsError, missing_extra, warn
from l2h.files import read_whole, write_atomically

SIGNATURE = "manifest.sig"
#: Goes before the manifest, so that a signature of something else can never pass as one of a bundle.
_CONTEXT = b"l2h bundle manifest, version 1\n"
_LONGEST = 16 * 2**10
_RAW = 32


def make_key(path: str | Path) -> Path:
    """Write a new private key to a file that only its owner may read, and the public key beside it.

    Returns:
        The file of the public key: ``path`` with ``.pub`` after it.

    Raises:
        SettingsError: one of the files is there already, or cannot be written.
    """
    private, public = Path(path), Path(f"{path}.pub")
    _, serialization, ed25519 = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    encoding, formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, formats, serialization.NoEncryption())
    shown = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    for file, text, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise SettingsError(f"{file} is there already: choose another name, a key is never replaced") from None
        except OSError as error:
            raise SettingsError(f"cannot write {file}: {error.strerror or error}") from error
        with os.fdopen(descriptor, "wb") as out:
            out.write(text)
    return public


def sign(manifest: bytes, key: str | Path) -> bytes:
    """Return the signature of a manifest's text, as :data:`SIGNATURE` holds it, by the private key in a file."""
    signature = _private_key(key).sign(_CONTEXT + manifest)
    return base64.b64encode(signature) + b"\n"


def write_signature(folder: str | Path, manifest: bytes, key: str | Path) -> Path:
    """Sign a manifest's text, and put the signature beside it."""
    return write_atomically(Path(folder) / SIGNATURE, sign(manifest, key))


def read_verify_key(key: str | Path | bytes) -> bytes:
    """Return the 32 bytes of a public key: of a file, or of the text (PEM) or the bytes themselves.

    Raises:
        SettingsError: there is no public key of the kind ed25519.
    """
    if not isinstance(key, str | Path | bytes):
        raise SettingsError(f"verify_key={key!r} is no key: give the file that l2h sign key writes, FILE.pub")
    _, serialization, ed25519 = _cryptography()
    if isinstance(key, bytes) and len(key) == _RAW:
        return key
    data, where = (key, "verify_key") if isinstance(key, bytes) else (_read_key(key), str(key))
    if b"PRIVATE KEY" in data:
        raise SettingsError(f"{where} holds a private key, which belongs to whoever signs: give the public one, .pub")
    try:
        public = serialization.load_pem_public_key(data)
    except ValueError:
        public = None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise SettingsError(f"{where} holds no ed25519 public key: l2h sign key FILE writes FILE.pub")
    return bytes(public.public_bytes_raw())


def check_signature(manifest: bytes, folder: str | Path, key: bytes) -> None:
    """Raise a :class:`BundleError` unless the signature beside a manifest's text is that of a key.

    Args:
        manifest: the bytes of ``manifest.json``, as they were read.
        folder: of the bundle.
        key: as :func:`read_verify_key` returns it.
    """
    exceptions, _, ed25519 = _cryptography()
    try:
        signature = base64.b64decode(read_whole(Path(folder) / SIGNATURE, _LONGEST).strip(), validate=True)
    except FileNotFoundError:
        why = f"it is not signed ({SIGNATURE} is missing), and a key was given"
        raise BundleError(f"{folder} is refused: {why}") from None
    except OSError as error:
        raise BundleError(f"cannot read {Path(folder) / SIGNATURE}: {error.strerror or error}") from error
    except (binascii.Error, ValueError):
        signature = b""
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, _CONTEXT + manifest)
    except exceptions.InvalidSignature:
        raise BundleError(
            f"{folder} is refused: its signature does not fit; it was changed after it was signed, or signed with "
            "another key"
        ) from None


def _private_key(path: str | Path) -> Any:
    _, serialization, ed25519 = _cryptography()
    data = _read_key(path)
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise SettingsError(f"{path} holds a private key with a passphrase: give one without") from None
    except ValueError:
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise SettingsError(f"{path} holds no ed25519 private key: l2h sign key FILE writes one")
    if os.name == "posix" and Path(path).stat().st_mode & 0o077:
        warn(f"others can read the private key {path}: chmod 600 {path}")
    return key


def _read_key(path: str | Path) -> bytes:
    try:
        return read_whole(path, _LONGEST)
    except OSError as error:
        raise SettingsError(f"cannot read the key {path}: {error.strerror or error}") from error


def _cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise missing_extra("signatures need the package 'cryptography'", "signing") from error
    return exceptions, serialization, ed25519
