"""Self-signed TLS certificates for tests, in pure Python: ECDSA on P-256, without openssl."""

import base64
import hashlib
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
SEQUENCE, SET, INTEGER, BIT_STRING, OCTET_STRING = 0x30, 0x31, 0x02, 0x03, 0x04
OID, UTF8_STRING, UTC_TIME = 0x06, 0x0C, 0x17
PRIME256V1 = bytes.fromhex("2A8648CE3D030107")
EC_PUBLIC_KEY = bytes.fromhex("2A8648CE3D0201")
ECDSA_WITH_SHA256 = bytes.fromhex("2A8648CE3D040302")
COMMON_NAME, SUBJECT_ALT_NAME, BASIC_CONSTRAINTS = (
    bytes.fromhex(each) for each in ("550403", "551D11", "551D13")
)

Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate in PEM form, and the file with certificate and private key that a server loads."""

    text: str
    file: Path


def create_certificate(folder: Path, *names: str) -> Certificate:
    """Create a certificate for these host names, valid until 2049."""
    secret = secrets.randbelow(N - 1) + 1
    x, y = _multiply_point(secret, G) or (0, 0)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    algorithm = _der(SEQUENCE, _der(OID, ECDSA_WITH_SHA256))
    name = _der(
        SEQUENCE, _der(SET, _der(SEQUENCE, _der(OID, COMMON_NAME), _der(UTF8_STRING, b"a server of a test")))
    )
    tbs_certificate = _der(
        SEQUENCE,
        _der(0xA0, _der_integer(2)),
        _der_integer(secrets.randbits(64) | 1),
        algorithm,
        name,
        _der(SEQUENCE, _der(UTC_TIME, b"200101000000Z"), _der(UTC_TIME, b"491231235959Z")),
        name,
        _der(
            SEQUENCE, _der(SEQUENCE, _der(OID, EC_PUBLIC_KEY), _der(OID, PRIME256V1)), _der(BIT_STRING, b"\0", public)
        ),
        _der(0xA3, _der(SEQUENCE, _extension(SUBJECT_ALT_NAME, *(_der(0x82, each.encode()) for each in names)),
                        _extension(BASIC_CONSTRAINTS, b"\x01\x01\xff"))),
    )  # fmt: skip
    pem = ssl.DER_cert_to_PEM_cert(
        _der(SEQUENCE, tbs_certificate, algorithm, _der(BIT_STRING, b"\0", _sign(tbs_certificate, secret)))
    )
    key = _der(
        SEQUENCE, _der_integer(1), _der(OCTET_STRING, secret.to_bytes(32, "big")), _der(0xA0, _der(OID, PRIME256V1)),
        _der(0xA1, _der(BIT_STRING, b"\0", public)),
    )  # fmt: skip
    label = "EC PRIVATE " + "KEY"
    file = folder / "server.pem"
    file.write_text(
        f"-----BEGIN {label}-----\n{base64.encodebytes(key).decode()}-----END {label}-----\n{pem}"
    )
    return Certificate(text=pem, file=file)


def _sign(tbs_certificate: bytes, secret: int) -> bytes:
    nonce = secrets.randbelow(N - 1) + 1
    r = (_multiply_point(nonce, G) or (0, 0))[0] % N
    s = pow(nonce, -1, N) * (int.from_bytes(hashlib.sha256(tbs_certificate).digest(), "big") + r * secret) % N
    return _der(SEQUENCE, _der_integer(r), _der_integer(s))


def _multiply_point(factor: int, point: Point) -> Point:
    product: Point = None
    while factor:
        if factor & 1:
            product = _add_points(product, point)
        point = _add_points(point, point)
        factor >>= 1
    return product


def _add_points(left: Point, right: Point) -> Point:
    if left is None or right is None:
        return left or right
    if left[0] == right[0] and (left[1] + right[1]) % P == 0:
        return None
    if left == right:
        slope = 3 * (left[0] ** 2 - 1) * pow(2 * left[1], -1, P)
    else:
        slope = (right[1] - left[1]) * pow(right[0] - left[0], -1, P)
    x = (slope**2 - left[0] - right[0]) % P
    return x, (slope * (left[0] - x) - left[1]) % P


def _extension(oid: bytes, *parts: bytes) -> bytes:
    return _der(SEQUENCE, _der(OID, oid), _der(OCTET_STRING, _der(SEQUENCE, *parts)))


def _der_integer(number: int) -> bytes:
    return _der(INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    if size < 0x80:
        return bytes((tag, size)) + body
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + body
