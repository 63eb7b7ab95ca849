"""A certificate that nobody trusts, made on the spot: its key is a few sums on a curve, and no program is needed."""

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
SEQUENCE, SET, WHOLE, BITS, OCTETS, OID, TEXT, TIME = 0x30, 0x31, 0x02, 0x03, 0x04, 0x06, 0x0C, 0x17
CURVE = bytes.fromhex("2A8648CE3D030107")
KEY_ON_A_CURVE = bytes.fromhex("2A8648CE3D0201")
SIGNED_WITH_SHA256 = bytes.fromhex("2A8648CE3D040302")
COMMON_NAME, ALSO_KNOWN_AS, MAY_SIGN = (bytes.fromhex(each) for each in ("550403", "551D11", "551D13"))

Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate as text, and the file that a server loads, which has the key too."""

    text: str
    file: Path


def certificate(folder: Path, *names: str) -> Certificate:
    """Self-signed, for these host names, until the year 2049."""
    secret = secrets.randbelow(N - 1) + 1
    x, y = _times(secret, G) or (0, 0)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    kind = _der(SEQUENCE, _der(OID, SIGNED_WITH_SHA256))
    name = _der(
        SEQUENCE, _der(SET, _der(SEQUENCE, _der(OID, COMMON_NAME), _der(TEXT, b"a server of a test")))
    )
    claims = _der(
        SEQUENCE,
        _der(0xA0, _whole(2)),
        _whole(secrets.randbits(64) | 1),
        kind,
        name,
        _der(SEQUENCE, _der(TIME, b"200101000000Z"), _der(TIME, b"491231235959Z")),
        name,
        _der(
            SEQUENCE, _der(SEQUENCE, _der(OID, KEY_ON_A_CURVE), _der(OID, CURVE)), _der(BITS, b"\0", public)
        ),
        _der(0xA3, _der(SEQUENCE, _extension(ALSO_KNOWN_AS, *(_der(0x82, each.encode()) for each in names)),
                        _extension(MAY_SIGN, b"\x01\x01\xff"))),
    )  # fmt: skip
    made = ssl.DER_cert_to_PEM_cert(_der(SEQUENCE, claims, kind, _der(BITS, b"\0", _signed(claims, secret))))
    key = _der(
        SEQUENCE, _whole(1), _der(OCTETS, secret.to_bytes(32, "big")), _der(0xA0, _der(OID, CURVE)),
        _der(0xA1, _der(BITS, b"\0", public)),
    )  # fmt: skip
    word = "EC PRIVATE " + "KEY"
    file = folder / "server.pem"
    file.write_text(f"-----BEGIN {word}-----\n{base64.encodebytes(key).decode()}-----END {word}-----\n{made}")
    return Certificate(text=made, file=file)


def _signed(claims: bytes, secret: int) -> bytes:
    once = secrets.randbelow(N - 1) + 1
    r = (_times(once, G) or (0, 0))[0] % N
    s = pow(once, -1, N) * (int.from_bytes(hashlib.sha256(claims).digest(), "big") + r * secret) % N
    return _der(SEQUENCE, _whole(r), _whole(s))


def _times(count: int, point: Point) -> Point:
    found: Point = None
    while count:
        if count & 1:
            found = _sum(found, point)
        point = _sum(point, point)
        count >>= 1
    return found


def _sum(one: Point, other: Point) -> Point:
    if one is None or other is None:
        return one or other
    if one[0] == other[0] and (one[1] + other[1]) % P == 0:
        return None
    if one == other:
        slope = 3 * (one[0] ** 2 - 1) * pow(2 * one[1], -1, P)
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P)
    x = (slope**2 - one[0] - other[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def _extension(oid: bytes, *parts: bytes) -> bytes:
    return _der(SEQUENCE, _der(OID, oid), _der(OCTETS, _der(SEQUENCE, *parts)))


def _whole(number: int) -> bytes:
    return _der(WHOLE, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    if size < 0x80:
        return bytes((tag, size)) + body
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + body
