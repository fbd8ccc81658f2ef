"""The private folder of a federation: a certificate authority, certificates, keys and shared secrets."""

import datetime
import ipaddress
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA, CERTIFICATE, CERTIFICATE_KEY = "ca.crt", "server.crt", "server.key"
NODE_KEY, SECRET, TOKEN = "node.key", "executor.secret", "operator.token"
DAYS_CA, DAYS_SERVER = 3650, 825
Extensions = Sequence[tuple[x509.ExtensionType, bool]]  # each, and whether it is critical


def make_keys(folder: Path, nodes: int, hosts: Sequence[str] = (), owner: int | None = None) -> None:
    """Make what is missing in the private folder of a federation; what is there stays as it is.

    A folder for each process, with what it alone may read, and the CA's certificate:

    - ``ca``: the CA's key, which no process needs;
    - ``superlink``: its certificate, the operator's token, the secret of the executor of ServerApps;
    - ``serverapp``: that secret;
    - ``operator``: the operator's token and the nodes' public keys, ``node-<k>.pub``;
    - ``supernode-<k>``: the private key that makes it client k, a certificate, the secret of its executor;
    - ``clientapp-<k>``: that secret."""
    for host in hosts:
        _general(host)  # refuses
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _Authority(folder / "ca")
    link = folder / "superlink"
    authority.certify(link, ["superlink", "localhost", "127.0.0.1", *hosts])
    _copy(link, TOKEN, _once(folder / "operator" / TOKEN, secrets.token_urlsafe(32).encode()))
    _copy(folder / "serverapp", SECRET, _once(link / SECRET, secrets.token_bytes(32)))
    for name in ("serverapp", "operator"):
        _copy(folder / name, CA, authority.pem)
    for client in range(nodes):
        node, app = folder / f"supernode-{client}", folder / f"clientapp-{client}"
        authority.certify(node, [f"supernode-{client}", "localhost", "127.0.0.1"])
        _copy(app, CA, authority.pem)
        _copy(app, SECRET, _once(node / SECRET, secrets.token_bytes(32)))
        public = _key(node / NODE_KEY, ssh=True).public_key()
        text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _copy(folder / "operator", f"node-{client}.pub", text)
    for place in (path for path in folder.iterdir() if path.is_dir()):
        if place.stat().st_mode & 0o777 != 0o700:  # a new volume is open to all; later it is another's
            place.chmod(0o700)
        if owner is not None:
            for path in (place, *place.iterdir()):
                os.chown(path, owner, owner)


class _Authority:
    """A certificate authority in a folder: its key and its certificate, made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpart federation")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        extensions: Extensions = [(constraints, True), (usage, True)]
        self.pem = _once(
            folder / CA, lambda: self._sign(self._name, self._key.public_key(), DAYS_CA, extensions)
        )

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        """What signs; it may be kept elsewhere while nothing is to be signed."""
        path, made = self._folder / "ca.key", self._folder / CA
        if made.exists() and not path.exists():
            raise FileNotFoundError(f"{made} is there without its key; put {path} back, and try again")
        key = _key(path)
        if made.exists() and _certificate(made).public_key() != key.public_key():
            raise FileExistsError(f"{path} is not the key of {made}; put back the one that belongs to it")
        return key

    def certify(self, folder: Path, hosts: Sequence[str]) -> None:
        """Put a server's key and certificate into a folder, with the CA's certificate."""
        public = _key(folder / CERTIFICATE_KEY).public_key()
        names, file = x509.SubjectAlternativeName(map(_general, dict.fromkeys(hosts))), folder / CERTIFICATE
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        extensions: Extensions = [(names, False), (usage, False)]
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        _copy(folder, CA, self.pem)
        _once(file, lambda: self._sign(name, public, DAYS_SERVER, extensions))
        made, of_authority = _certificate(file), False
        with suppress(ValueError, TypeError, InvalidSignature):
            made.verify_directly_issued_by(_certificate(folder / CA))
            of_authority = made.public_key() == public
        known = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not of_authority or not {*names} <= {*known}:
            what = f"the names {', '.join(hosts)}" if of_authority else "its key, or of this authority"
            raise FileExistsError(f"{file} is not of {what}; remove it for a new one")

    def _sign(
        self, name: x509.Name, public: ec.EllipticCurvePublicKey, days: int, extensions: Extensions
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, name, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        subject = x509.SubjectKeyIdentifier.from_public_key(public)
        for extension, critical in [*extensions, (signer, False), (subject, False)]:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _general(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    name = ""
    with suppress(UnicodeError):
        name = host.lower().encode("idna").decode()
    if not re.fullmatch(r"(\*\.)?(?!-)[\w-]{1,63}(\.[\w-]{1,63})*\.?", name, re.ASCII):
        raise OSError(f"{host!r} is no name of a host; give each with --host, without port or https://")
    return x509.DNSName(name)


def _key(path: Path, ssh: bool = False) -> ec.EllipticCurvePrivateKey:
    """The private key in a file; a fresh one is put into it if it is not there."""
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    read = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
    fresh = ec.generate_private_key(ec.SECP384R1())
    text = fresh.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    held = _once(path, text)
    try:
        return cast(ec.EllipticCurvePrivateKey, read(held, None))
    except ValueError as error:
        raise OSError(f"{path} holds no private key; put it back, or begin in an empty folder") from error


def _certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        remedy = (
            "put it back" if file.name == CA else "remove it for a new one, which takes the authority's key"
        )
        raise OSError(f"{file} holds no certificate; {remedy}") from error


def _once(path: Path, content: bytes | Callable[[], bytes]) -> bytes:
    """What the file holds; it is made with ``content``, in one piece, if it is not there."""
    if not path.exists():
        made = content if isinstance(content, bytes) else content()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(prefix=".", dir=path.parent)  # for the owner's eyes alone
        try:
            with os.fdopen(number, "wb") as file:
                file.write(made)
            try:
                os.link(draft, path)  # refused where another process has made it since
            except OSError:
                if not path.exists():  # a file system without links
                    os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
    return path.read_bytes()


def _copy(folder: Path, name: str, content: bytes) -> None:
    """A file with that content."""
    if _once(folder / name, content) != content:
        remedy = "give an empty folder, or the whole of one"
        raise FileExistsError(f"{folder / name} belongs to another federation; {remedy}")
