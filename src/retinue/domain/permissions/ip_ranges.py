"""Which numbers of machines are the world's: all others are of this machine, its network or its cloud."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20")
)
"""Of those, what is made of another address (Teredo, 6to4), kept for examples, or given to nobody."""
_NOT_PUBLIC_4 = tuple(
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",
    )
)
"""This machine, its network and its cloud; the last answers every machine of one cloud from a public number."""


def is_public(number: str) -> bool:
    """Whether a machine's number is one of the world's, and not of this machine, its network or its cloud. A number
    that holds another one is judged as neither: it is refused."""
    try:
        found: IPv4Address | IPv6Address = ip_address(number)
    except ValueError:
        return False
    if isinstance(found, IPv4Address):
        return not any(found in each for each in _NOT_PUBLIC_4)
    return found.scope_id is None and found in _UNICAST and not any(found in each for each in _NOT_PUBLIC_6)
