"""URLs: which are valid, which sites the operator allows, and which IP addresses are never contacted."""

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from retinue.domain.permissions.ip_ranges import is_public_ip
from retinue.domain.permissions.urls import (
    InvalidUrl,
    Url,
    is_url_allowed,
    parse_site,
    parse_url,
    resolve_redirect,
)

ODD = st.text(
    st.sampled_from("\0\t\r\n \\/@:?#[]%.,;-_*0x1aZé\u00ad\u200b\u3002\uff0f\uff20\ud800\u3002\uff20٣"),
    max_size=4,
)


@pytest.mark.parametrize(
    ("url", "normalized"),
    [
        ("https://docs.example.org", "https://docs.example.org/"),
        ("HTTPS://Docs.EXAMPLE.org:443/A?b=C#d", "https://docs.example.org/A?b=C"),
        ("http://example.org:8080?q=1", "http://example.org:8080/?q=1"),
        ("https://example.org/a@b:c/%00%0d%0a", "https://example.org/a@b:c/%00%0d%0a"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
    ],
)
def test_a_url_has_one_normal_form(url: str, normalized: str):
    assert str(parse_url(url)) == normalized


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "//example.org/", "ftp://example.org/", "file:///etc/passwd", "javascript://example.org/%0a",
        "https:/example.org", "https://", "https:///etc/passwd", "https://?", "https://:443/",
        "https://good.example\0.evil.example/", "https://good.example\r\nHost: evil.example/", "https://good.example\t/",
        "https://good.example/\r\nX: y", " https://good.example/", "https://good.example/a b",
        "https://good.example@evil.example/", "https://user:word@good.example/", "https://@good.example/",
        "https://good.example\\@evil.example/", "https://good.example\\.evil.example/", "https://good.example%2eevil.example/",
        "https://good.example%00.evil.example/", "https://good.example./", "https://good.example../", "https://.good.example/",
        "https://good..example/", "https://-good.example/", "https://good_example.org/", "https://gööd.example/",
        "https://good.example\u3002evil.example/", "https://good.example\uff0fevil.example/", "https://\uff47ood.example/",
        "https://127.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/", "https://1.2.3.0x4/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[fe80::1%25eth0]/", "https://169.254.169.254/latest/",
        "https://good.example:/", "https://good.example:0/", "https://good.example:65536/", "https://good.example:0443/",
        "https://good.example:443:80/", "https://good.example:+443/", "https://good.example:\uff14\uff14\uff13/", "https://good.example:4e2/",
        "https://good.example/{a}", "https://good.example/%zz", "https://good.example/\\..\\", "https://good.example/" + "a" * 2000,
        "https://" + "a" * 64 + ".example/", "https://" + "a." * 127 + "example/",
    ],
)  # fmt: skip
def test_an_ambiguous_url_is_refused(url: str):
    """Shows: S06."""
    with pytest.raises(InvalidUrl):
        parse_url(url)


@pytest.mark.parametrize(
    ("site", "allowed", "refused"),
    [
        (
            "docs.example.org",
            ["https://docs.example.org/", "https://DOCS.example.org:443/a"],
            ["http://docs.example.org/", "https://docs.example.org:8443/", "https://example.org/"],
        ),
        (
            "*.example.org",
            ["https://a.example.org/", "https://a.b.example.org/"],
            ["https://example.org/", "https://badexample.org/", "https://a.example.org.evil.example/"],
        ),
        (
            "http://example.org:8080",
            ["http://example.org:8080/a"],
            ["http://example.org/", "https://example.org:8080/", "http://a.example.org:8080/"],
        ),
        ("*", ["https://any.example/"], ["http://any.example/", "https://any.example:8443/"]),
    ],
)
def test_a_site_is_a_host_with_one_scheme_and_port(site: str, allowed: list[str], refused: list[str]):
    """Plain HTTP is allowed only if the site names it.

    Shows: S06.
    """
    assert [is_url_allowed(parse_url(url), [parse_site(site)]) for url in (*allowed, *refused)] == [
        True
    ] * len(allowed) + [False] * len(refused)


def test_without_a_site_no_url_is_allowed():
    """Shows: S06."""
    assert not is_url_allowed(parse_url("https://example.org/"), [])


@pytest.mark.parametrize(
    "site", ["", "**", "*.*", "a.*.example", "https://", "127.0.0.1", "*.1", "example.org/path", "ftp://example.org", "*example.org"]
)  # fmt: skip
def test_an_invalid_site_is_refused(site: str):
    with pytest.raises(InvalidUrl):
        parse_site(site)


@given(ODD, ODD, ODD, ODD)
@example("", "@", "", "")
@example("", "\\@", "", "")
@example("", ":443@", "", "")
@example("", "#@", "", "")
@example("", "?@", "", "")
@example("", "/@", "", "")
def test_other_url_parsers_find_the_same_host_in_an_accepted_url(
    before: str, between: str, after: str, end: str
):
    """Every URL parser would connect to the host that was allowed.

    Shows: S06.
    """
    try:
        parsed = parse_url(f"https://{before}good.example{between}evil.example{after}/{end}")
    except InvalidUrl:
        return
    text = str(parsed)
    assert parse_url(text) == parsed
    stdlib, yarl_url = urlsplit(text), URL(text, encoded=True)
    assert (stdlib.hostname, stdlib.username, stdlib.password) == (parsed.host, None, None)
    assert (yarl_url.host, yarl_url.user, yarl_url.port) == (parsed.host, None, parsed.port)
    if is_url_allowed(parsed, [parse_site("good.example"), parse_site("*.good.example")]):
        assert (f"{parsed.host}.").endswith("good.example.")
        assert before.removesuffix(".").isascii()
        assert between.startswith(("/", "?", "#", ":443/", ":443?", ":443#"))


@pytest.mark.parametrize(
    ("site", "target"),
    [
        ("https://other.example/x", "https://other.example/x"),
        ("//other.example/x", "http://other.example/x"),
        ("/x?y", "http://example.org:8080/x?y"),
        ("x", "http://example.org:8080/a/x"),
        ("?y", "http://example.org:8080/a/b?y"),
        ("#z", "http://example.org:8080/a/b"),
        ("javascript:alert", "http://example.org:8080/a/javascript:alert"),
    ],
)
def test_a_redirect_is_resolved_against_the_current_url(site: str, target: str):
    assert str(resolve_redirect(parse_url("http://example.org:8080/a/b?c"), site)) == target


@pytest.mark.parametrize(
    "site", ["file:///etc/passwd", "//user@evil.example/", "/\\evil.example", "\tx", "//[::1]/"]
)
def test_a_redirect_to_an_invalid_url_is_refused(site: str):
    """Shows: S06, S07."""
    with pytest.raises(InvalidUrl):
        resolve_redirect(Url(scheme="https", host="example.org", port=443), site)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "198.18.0.1",
        "192.0.2.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.88.99.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "2001::1", "2001:db8::1", "2002:7f00:1::1",
        "2606:4700::1%1", "100::1", "5f00::1", "4000::1", "localhost", "0177.0.0.1", "0x7f000001", "",
    ],
)  # fmt: skip
def test_local_private_and_cloud_metadata_addresses_are_not_public(address: str):
    """Shows: S07."""
    assert not is_public_ip(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2a00:1450::8"]
)
def test_other_addresses_are_public(address: str):
    assert is_public_ip(address)


@given(st.ip_addresses())
def test_no_address_that_the_standard_library_calls_private_is_public(address: object):
    """Shows: S07."""
    for kind in (
        "is_private",
        "is_loopback",
        "is_link_local",
        "is_multicast",
        "is_reserved",
        "is_unspecified",
    ):
        if getattr(address, kind):
            assert not is_public_ip(str(address))
