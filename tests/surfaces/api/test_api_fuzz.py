"""The document against the daemon: whatever it lets be asked is answered as it says, and what it forbids is refused."""

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

CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
CHECKS: list[Any] = [getattr(checks, name) for name in CHECKED]
UNASKED = {"POST /api/stop", "GET /api/events", "GET /api/sessions/{id}/events"}
"""The daemon's end, and answers that do not end."""
SCHEMA: Any = schemathesis.openapi.from_dict(openapi_document())
OPERATIONS: dict[str, Any] = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
PATIENCE = 60.0
EXAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    url: str
    line: requests.Session

    def asks(self, method: str, path: str, body: Any = None) -> Any:
        return self.line.request(method, f"{self.url}{path}", json=body, timeout=PATIENCE).json()

    def names(self, label: str) -> list[str]:
        """Things that are there, of the kind that an address names."""
        if "/agents/" in label:
            return ["general", "researcher"]
        made = self.asks("POST", "/api/sessions", {"agent": "general"})
        if "/runs/" not in label:
            return [made["session_id"], made["slug"]]
        return [self.asks("POST", f"/api/sessions/{made['slug']}/messages", {"content": "Hi"})["responseId"]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A real process, as another program would find it."""
    place = tmp_path_factory.mktemp("fuzz")
    (place / "script.json").write_text(json.dumps({"general": ["ok"] * 1000}))
    env = {name: str(place / name) for name in ("HOME", "RETINUE_HOME", "RETINUE_CONFIG")}
    for folder in env.values():
        Path(folder).mkdir(mode=0o700)
    env |= {"RETINUE_MODEL": f"scripted:{place / 'script.json'}", "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-m", "retinue", "serve", "--port", "0"]
    process = subprocess.Popen(words, env=env, cwd=place, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = ""
    while "/enter/" not in url:
        url = process.stderr.readline()
        assert url, "the daemon ended"
    line = requests.Session()
    line.headers["Authorization"] = f"Bearer {(place / 'RETINUE_HOME' / 'token').read_text().strip()}"
    yield Served(url=url.partition("/enter/")[0].rpartition(" ")[2], line=line)
    line.close()
    process.terminate()
    process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("label", sorted(OPERATIONS.keys() - UNASKED))
def test_every_answer_is_one_that_the_document_names(served: Served, label: str, mode: GenerationMode):
    real = served.names(label) if "{id}" in label else []
    operation = OPERATIONS[label]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(mode), name=st.sampled_from(["", *real]))
    def asked(case: Any, name: str) -> None:
        if name:
            case.path_parameters["id"] = name
        response = case.call(base_url=served.url, session=served.line, timeout=PATIENCE)
        case.validate_response(response, checks=CHECKS)

    asked()


def test_the_document_names_every_route_with_its_right_its_errors_and_an_example():
    document = openapi_document()
    for route in ROUTES:
        operation = document["paths"][route.path.replace("{ref}", "{id}")][route.method.lower()]
        assert operation["x-right"] == route.right
        assert {"400", "401", "403", "421", "429", "500"} <= operation["responses"].keys()
        assert ("404" in operation["responses"]) >= ("{ref}" in route.path)
        answer = next(iter(operation["responses"][str(route.success_status)]["content"].values()))
        assert route.is_stream or "example" in answer or route.path == "/api/openapi.json", route.path
        assert (
            "requestBody" not in operation
            or "example" in operation["requestBody"]["content"]["application/json"]
        )
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)
