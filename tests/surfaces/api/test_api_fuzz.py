"""Fuzz the daemon with its OpenAPI document: every response is one that the document declares."""

import json
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from retinue.server.route_table import ROUTES, openapi_document

CHECK_NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
CHECKS: list[Any] = [getattr(checks, name) for name in CHECK_NAMES]
SKIPPED_OPERATIONS = {"POST /api/stop", "GET /api/events", "GET /api/sessions/{id}/events"}
"""The first stops the daemon; the others never end."""
SCHEMA: Any = schemathesis.openapi.from_dict(openapi_document())
OPERATIONS: dict[str, Any] = {item.ok().label: item.ok() for item in SCHEMA.get_all_operations()}
TIMEOUT_S = 60.0
EXAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonApi:
    url: str
    http: requests.Session

    def call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        return self.http.request(method, f"{self.url}{path}", json=body, timeout=TIMEOUT_S).json()

    def existing_refs(self, label: str) -> list[str]:
        """References to existing things, of the kind that the path of this operation takes."""
        if "/agents/" in label:
            return ["general", "researcher"]
        session = self.call("POST", "/api/sessions", {"agent": "general"})
        if "/runs/" not in label:
            return [session["session_id"], session["slug"]]
        return [
            self.call("POST", f"/api/sessions/{session['slug']}/messages", {"content": "Hi"})["responseId"]
        ]


@pytest.fixture(scope="module")
def daemon_api(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonApi]:
    """A daemon in a process of its own, as another program would find it."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "script.json").write_text(json.dumps({"general": ["ok"] * 1000}))
    env = {name: str(root / name) for name in ("HOME", "RETINUE_HOME", "RETINUE_CONFIG")}
    for folder in env.values():
        Path(folder).mkdir(mode=0o700)
    env |= {"RETINUE_MODEL": f"scripted:{root / 'script.json'}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "retinue", "serve", "--port", "0"]
    process = subprocess.Popen(command, env=env, cwd=root, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    while "/enter/" not in url:
        url = process.stderr.readline()
        assert url, "the daemon ended"
    http = requests.Session()
    http.headers["Authorization"] = f"Bearer {(root / 'RETINUE_HOME' / 'token').read_text().strip()}"
    yield DaemonApi(url=url.partition("/enter/")[0].rpartition(" ")[2], http=http)
    http.close()
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", sorted(OPERATIONS.keys() - SKIPPED_OPERATIONS))
def test_every_response_is_declared_in_the_openapi_document(
    daemon_api: DaemonApi, label: str, mode: GenerationMode
):
    refs = daemon_api.existing_refs(label) if "{id}" in label else []
    operation = OPERATIONS[label]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(mode), name=st.sampled_from(["", *refs]))
    def call_and_validate(case: Any, name: str) -> None:
        if name:
            case.path_parameters["id"] = name
        response = case.call(base_url=daemon_api.url, session=daemon_api.http, timeout=TIMEOUT_S)
        case.validate_response(response, checks=CHECKS)

    call_and_validate()


def test_the_openapi_document_describes_each_route_with_its_right_errors_and_an_example():
    document = openapi_document()
    for route in ROUTES:
        operation = document["paths"][route.path.replace("{ref}", "{id}")][route.method.lower()]
        assert operation["x-right"] == route.right
        assert {"400", "401", "403", "421", "429", "500"} <= operation["responses"].keys()
        assert ("404" in operation["responses"]) >= ("{ref}" in route.path)
        content = next(iter(operation["responses"][str(route.success_status)]["content"].values()))
        assert route.is_stream or "example" in content or route.path == "/api/openapi.json", route.path
        assert (
            "requestBody" not in operation
            or "example" in operation["requestBody"]["content"]["application/json"]
        )
    operation_ids = [item["operationId"] for path in document["paths"].values() for item in path.values()]
    assert len(operation_ids) == len(set(operation_ids)) == len(ROUTES)
