"""Classification of IP addresses: public, or of this machine, its network or its cloud."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20")
)
"""Non-public parts of it: tunnels to other addresses (Teredo, 6to4), documentation and unassigned ranges."""
_NOT_PUBLIC_4 = tuple(
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        "168.63.129.16/32",
    )
)
"""Addresses of this machine, its network and its cloud; the last one is a cloud's metadata service."""


def is_public_ip(address: str) -> bool:
    """Return True for a public address, not one of this machine, its network or its cloud.

    An address that embeds another one counts as not public.
    """
    try:
        parsed: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv4Address):
        return not any(parsed in each for each in _NOT_PUBLIC_4)
    return (
        parsed.scope_id is None
        and parsed in _GLOBAL_UNICAST
        and not any(parsed in each for each in _NOT_PUBLIC_6)
    )


def is_loopback_host(host: str) -> bool:
    """Return whether a host name or address is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
