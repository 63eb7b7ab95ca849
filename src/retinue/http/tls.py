"""Which certificates are trusted, and which one is shown to servers: SSL_CERT_FILE and other variables."""

import os
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from retinue.domain.secret_fields import SecretFieldsStruct
from retinue.errors import BadConfig

CLIENT_CERTIFICATE = "RETINUE_CLIENT_CERT"
CLIENT_KEY = "RETINUE_CLIENT_KEY"
CLIENT_KEY_PASSWORD = "RETINUE_CLIENT_KEY_PASSWORD"  # noqa: S105  (the name of a variable)
_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


class TlsSettings(SecretFieldsStruct, frozen=True, kw_only=True):
    """The TLS settings of an environment; each is empty if the variable is not set."""

    secret_fields = frozenset({"client_key_password"})

    ca_file: str = ""
    """SSL_CERT_FILE: replaces the system's file."""
    ca_folder: str = ""
    """SSL_CERT_DIR: replaces the system's folder."""
    ca_bundle: str = ""
    """REQUESTS_CA_BUNDLE, a file or folder: replaces all of the system's certificates."""
    client_certificate: str = ""
    client_key: str = ""
    client_key_password: str = ""

    def without_client_certificate(self) -> "TlsSettings":
        return TlsSettings(ca_file=self.ca_file, ca_folder=self.ca_folder, ca_bundle=self.ca_bundle)


def tls_settings(env: Mapping[str, str]) -> TlsSettings:
    """Read the TLS variables. REQUESTS_CA_BUNDLE is used only without the other two."""
    file, folder, bundle = (env.get(name, "") for name in _TRUST_VARIABLES)
    return TlsSettings(
        ca_file=file,
        ca_folder=folder,
        ca_bundle="" if file or folder else bundle,
        client_certificate=env.get(CLIENT_CERTIFICATE, ""),
        client_key=env.get(CLIENT_KEY, ""),
        client_key_password=env.get(CLIENT_KEY_PASSWORD, ""),
    )


@cache
def ssl_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context for these settings, made once.

    Raises:
        BadConfig: A variable names a file that cannot be used.
    """
    replaces_system = settings.ca_file or settings.ca_folder or settings.ca_bundle
    context = _own_context(settings) if replaces_system else ssl.create_default_context()
    if settings.client_certificate:
        _load_client_certificate(context, settings)
    elif settings.client_key:
        raise BadConfig(
            f"{CLIENT_KEY} is set, but {CLIENT_CERTIFICATE} is not. Set it to the file of the certificate."
        )
    context.set_alpn_protocols(["http/1.1"])
    return context


def _own_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context that trusts the named certificates.

    As in OpenSSL, SSL_CERT_FILE leaves the system's folder in use, and SSL_CERT_DIR the system's file.
    """
    if settings.ca_bundle:
        is_folder = Path(settings.ca_bundle).is_dir()
        file, folder = ("", settings.ca_bundle) if is_folder else (settings.ca_bundle, "")
    else:
        system = ssl.get_default_verify_paths()
        file = settings.ca_file or (system.openssl_cafile if Path(system.openssl_cafile).is_file() else "")
        folder = settings.ca_folder or (system.openssl_capath if Path(system.openssl_capath).is_dir() else "")
    for name, path in zip(
        _TRUST_VARIABLES, (settings.ca_file, settings.ca_folder, settings.ca_bundle), strict=True
    ):
        for each in filter(None, path.split(os.pathsep) if name == "SSL_CERT_DIR" else [path]):
            if not Path(each).exists():
                raise BadConfig(f"{name}: {each} does not exist.")
    try:
        context = ssl.create_default_context(cafile=file or None, capath=folder or None)
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"{file or folder} has no certificates that can be read. It must contain certificates in PEM format "
            f"({', '.join(_TRUST_VARIABLES)})."
        ) from error
    # The operator has named these certificates: an intermediate one is enough, and old company CAs lack extensions.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _load_client_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    for name, file in ((CLIENT_CERTIFICATE, settings.client_certificate), (CLIENT_KEY, settings.client_key)):
        if file and not Path(file).is_file():
            raise BadConfig(f"{name}: {file} is not a file.")
    try:
        # Without a password, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(
            settings.client_certificate, settings.client_key or None, password=settings.client_key_password
        )
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"The client certificate {settings.client_certificate} cannot be used with its key. Check {CLIENT_CERTIFICATE}, "
            f"{CLIENT_KEY} and {CLIENT_KEY_PASSWORD}."
        ) from error
