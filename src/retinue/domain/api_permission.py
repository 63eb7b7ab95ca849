"""API permissions of tokens, as stored by the daemon."""

from enum import StrEnum


class ApiPermission(StrEnum):
    """A permission of a token; none includes another."""

    READ = "read"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"


ALL_PERMISSIONS = frozenset(ApiPermission)
WEB_USER_PERMISSIONS = frozenset({ApiPermission.READ, ApiPermission.RUN, ApiPermission.APPROVE})
"""Permissions of a user of the page: everything except changing the daemon itself."""
