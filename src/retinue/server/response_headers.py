"""Headers of every response: no other origin may embed, frame or read it, and nothing is cached by default."""

Header = tuple[bytes, bytes]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers that allow no other origin."""
NO_STORE_HEADER: Header = (b"cache-control", b"no-store")
COMMON_RESPONSE_HEADERS: tuple[Header, ...] = (*SECURITY_HEADERS, NO_STORE_HEADER)
"""Headers added to each response that does not set them itself."""
