"""The network settings of an environment: proxies and certificates."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from retinue.http.connect import InvalidServerUrl, parse_server_url
from retinue.http.proxies import ProxySettings, proxy_settings
from retinue.http.tls import TlsSettings, ssl_context, tls_settings


class NetworkSettings(Struct, frozen=True, kw_only=True):
    """How servers are reached. Without settings: directly, with the system's certificates."""

    proxies: ProxySettings = ProxySettings()
    tls: TlsSettings = TlsSettings()
    """For servers."""
    proxy_tls: TlsSettings = TlsSettings()
    """For proxies."""

    def without_client_certificate(self) -> "NetworkSettings":
        """Return the settings for servers that an agent chooses, which must not learn who the user is."""
        return replace(self, tls=self.tls.without_client_certificate())

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
