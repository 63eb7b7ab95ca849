"""The network settings of an environment: proxies and certificates."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.permissions.ip_ranges import is_loopback_host
from retinue.errors import BadConfig
from retinue.http.connect import InvalidServerUrl, parse_server_url
from retinue.http.proxies import ProxySettings, proxy_settings
from retinue.http.tls import TlsSettings, ssl_context, tls_settings


class NetworkSettings(Struct, frozen=True, kw_only=True):
    """The way to reach servers. Without settings: directly, with the system's certificates."""

    proxies: ProxySettings = ProxySettings()
    tls: TlsSettings = TlsSettings()
    """For servers."""
    proxy_tls: TlsSettings = TlsSettings()
    """For proxies."""

    def without_client_certificate(self) -> "NetworkSettings":
        """Return the settings for servers that an agent chooses, which must not learn who the user is."""
        return replace(self, tls=self.tls.without_client_certificate())

    def check_encryption(self, url: str) -> None:
        """Raise BadConfig if a proxy on another machine would get a plain request, with its key, unencrypted."""
        try:
            server = parse_server_url(url)
        except InvalidServerUrl:
            return
        proxy = None if server.is_https else self.proxies.proxy_for(server)
        if proxy is not None and not proxy.server.is_https and not is_loopback_host(proxy.server.host):
            raise BadConfig(
                f"{url} would be requested through {proxy} without encryption: your key and your conversations would "
                f"cross the network in plain text. Add {server.certificate_name} to NO_PROXY."
            )

    def check(self, url: str) -> None:
        """Raise BadConfig if the settings for a URL cannot be used."""
        try:
            server = parse_server_url(url)
        except InvalidServerUrl:
            return
        proxy = self.proxies.proxy_for(server)
        uses_tls = server.is_https or (proxy is not None and proxy.server.is_https)
        if uses_tls and self.proxy_tls != TlsSettings():
            ssl_context(self.proxy_tls)


DIRECT = NetworkSettings()


def network_settings(env: Mapping[str, str]) -> NetworkSettings:
    """Read the network settings of an environment."""
    tls = tls_settings(env)
    return NetworkSettings(proxies=proxy_settings(env), tls=tls, proxy_tls=tls)
