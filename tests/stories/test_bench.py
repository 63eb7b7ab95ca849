"""The benchmark: every system does the same work, and a system that answers wrongly gets no figure."""

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from bench.bar_chart import render_charts
from bench.command import BenchOptions, machine_info
from bench.docs_report import BEGIN_MARK, END_MARK, update_page
from bench.report import Report
from bench.runner import BenchEnvironment, measure_workload
from bench.samples import Sample, Samples
from bench.scenarios import NOTE_FILE, NOTE_REPLY, NOTE_TEXT
from bench.server import ModelServerProtocol, ServerState
from bench.subject_process import BASELINE, MINIMUM, RETINUE, System, start_model_server
from bench.terminal_report import format_report
from bench.workloads import TURN_WORKLOADS, children_workload
from retinue.errors import UsageError

TINY = replace(TURN_WORKLOADS[0], repeat_count=2, rounds=1, preparation=(("create_sessions", {"count": 2}),))


def make_samples(**values: list[float]) -> Samples:
    """Make samples of the CPU milliseconds of a persisted turn, by system."""
    samples = Samples()
    for system, measured in values.items():
        for value in measured:
            facts = {"cpu": value, "wall": value * 2}
            samples.add(Sample(row="turn", variant="persisted", system=system.replace("_", "-"), facts=facts))
    return samples


def make_report(samples: Samples) -> Report:
    return Report(
        samples=samples,
        system_names=["bare", "retinue", "langgraph", "agno"],
        peer_names=["langgraph", "agno"],
        versions={"langgraph": {"langgraph": "1.2.20"}},
        missing_peers={"pydantic-ai": "could not be installed: no such package"},
        machine={
            **machine_info(),
            "day": "16 November 2026",
            "load": "0.1 0.2 0.3",
            "load_after": "0.4 0.5 0.6",
        },
    )


@pytest.fixture
def report() -> Report:
    samples = make_samples(bare=[0.5, 0.6, 0.7], retinue=[1.1, 1.0, 1.3], langgraph=[24.0, 8.0, 12.0])
    samples.add(Sample(row="turn", variant="persisted", system="agno", problem="unexpected reply 'No.'"))
    samples.add(Sample(row="server", variant="ceiling", system="server", facts={"rate": 9000.0}))
    return make_report(samples)


def test_the_report_shows_medians_with_their_spread_and_which_targets_are_met(report: Report):
    text = "\n".join(format_report(report))

    line = next(line for line in text.splitlines() if line.startswith("one turn with one tool, persisted"))
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "one turn with one tool, persisted", "ms CPU", "0.600 (±17%)", "1.10 (1.83x, ±14%)", "12.0 (20.0x, ±67%)", "no",
    ]  # fmt: skip
    assert "at most 1/4 of the best peer (12.0 ms CPU)" in text
    assert "MISSED" not in text
    assert "load average 0.1 0.2 0.3 before, 0.4 0.5 0.6 after" in text
    assert "langgraph 1.2.20" in text
    assert "the model server alone answers 9,000 requests per second" in text
    assert "agno: turn persisted: unexpected reply 'No.'" in text
    assert "pydantic-ai: could not be installed: no such package" in text


def test_a_missed_target_is_marked_in_the_report_and_in_the_json():
    report = make_report(make_samples(bare=[0.5], retinue=[3.0], langgraph=[8.0], agno=[9.0]))

    assert "\n".join(format_report(report)).count("MISSED") == 2
    data = json.loads(json.dumps(report.as_json()))
    assert [(each["wanted"], each["held"]) for each in data["targets"]] == [
        ("at most 1.2 ms CPU", False),
        ("at most 1/4 of the best peer (8.00 ms CPU)", False),
    ]
    ours = next(row for row in data["rows"] if row["system"] == "retinue" and row["unit"] == "ms CPU")
    assert (ours["value"], ours["over_bare"], ours["samples"]) == (3.0, 6.0, 1)


def test_the_report_shows_the_cost_of_the_minimum_system_next_to_each_target():
    samples = make_samples(bare=[0.5], floor=[1.5], retinue=[3.0])
    report = make_report(samples)

    line = next(
        line
        for line in format_report(report)
        if line.startswith("one turn with one tool, persisted  at most")
    )
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "one turn with one tool, persisted", "at most 1.2 ms CPU", "1.50 ms CPU", "3.00 ms CPU", "MISSED",
    ]  # fmt: skip
    assert report.as_json()["targets"][0]["floor"] == "1.50 ms CPU"


async def test_the_minimum_system_stores_every_run_and_child_on_disk(tmp_path: Path):
    few = replace(children_workload(3, 0), rounds=1)
    environment = BenchEnvironment(
        server_url="", work_dir=tmp_path, systems=[MINIMUM], samples=Samples(), on_progress=lambda _: None
    )
    async with start_model_server() as url:
        environment = replace(environment, server_url=url)
        await measure_workload(environment, TINY)
        await measure_workload(environment, few)

    assert [(each.row, each.problem) for each in environment.samples.items] == [
        ("turn", ""),
        ("children", ""),
    ]
    assert all(each.facts["written"] > 2048 for each in environment.samples.items)


def test_the_documentation_page_is_changed_only_between_the_marks(report: Report, tmp_path: Path):
    page = tmp_path / "performance.md"
    page.write_text(f"# Performance\n\nBefore.\n\n{BEGIN_MARK}\nold\n{END_MARK}\n\nAfter.\n")

    update_page(page, report, "../images/bench.svg")
    update_page(page, report, "../images/bench.svg")

    text = page.read_text()
    assert text.startswith("# Performance\n\nBefore.\n")
    assert text.endswith(f"{END_MARK}\n\nAfter.\n")
    assert "old" not in text
    assert text.count("(../images/bench.svg)") == 1
    assert "16 November 2026" in text
    assert "langgraph 1.2.20" in text
    assert "Load average over 1, 5 and 15 minutes: 0.1 0.2 0.3 before, 0.4 0.5 0.6 after." in text
    assert "| one turn with one tool, persisted | at most 1.2 ms CPU | - | 1.10 ms CPU | met |" in text

    page.write_text("# Nothing here")
    with pytest.raises(UsageError, match="no marks for the results"):
        update_page(page, report)


def test_the_chart_has_a_bar_per_successful_system_and_a_line_for_the_limit(report: Report):
    root = ET.fromstring(render_charts(report))
    space = {"svg": "http://www.w3.org/2000/svg"}

    texts = [each.text for each in root.iterfind(".//svg:text", space)]
    widths = [float(each.get("width", 0)) for each in root.iterfind(".//svg:rect", space)]
    assert {"bare", "retinue", "langgraph", "at most 1.2"} <= set(texts)
    assert "agno" not in texts
    assert widths == sorted(widths)
    assert len(widths) == 3
    assert len(root.findall(".//svg:line", space)) == 1


def test_an_unknown_row_is_refused_with_the_list_of_known_rows():
    with pytest.raises(UsageError, match=r"Unknown row 'trun'. Use turn, children, stream"):
        BenchOptions(rows=("turn", "trun")).selected_rows()


async def test_the_model_server_refuses_a_request_without_the_real_tool_result():
    server = await asyncio.get_running_loop().create_server(
        lambda: ModelServerProtocol(ServerState()), "127.0.0.1", 0
    )
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/turn/0/v1/chat/completions"

    async def post(http: aiohttp.ClientSession, *messages: dict[str, str]) -> tuple[int, str]:
        async with http.post(url, json={"model": "bench", "messages": list(messages)}) as response:
            return response.status, await response.text()

    task = {"role": "user", "content": "Read the note."}
    async with server, aiohttp.ClientSession() as http:
        first = await post(http, task)
        without_tool = await post(http, task, {"role": "tool", "content": "I did not look."})
        done = await post(http, task, {"role": "tool", "content": NOTE_TEXT})

    assert first[0] == 200
    assert NOTE_FILE in first[1]
    assert without_tool[0] == 400
    assert (done[0], json.loads(done[1])["choices"][0]["message"]["content"]) == (200, NOTE_REPLY)


def make_environment(
    url: str, work_dir: Path, *systems: System, on_progress: Callable[[str], None] = lambda _: None
) -> BenchEnvironment:
    return BenchEnvironment(
        server_url=url,
        work_dir=work_dir,
        systems=systems,
        samples=Samples(work_dir / "samples.jsonl"),
        on_progress=on_progress,
    )


async def test_systems_alternate_on_a_workload_and_no_sample_is_measured_twice(tmp_path: Path):
    messages: list[str] = []
    async with start_model_server() as url:
        await measure_workload(
            make_environment(url, tmp_path, BASELINE, RETINUE, on_progress=messages.append), TINY
        )
        again = make_environment(url, tmp_path, BASELINE, RETINUE, on_progress=messages.append)
        await measure_workload(again, TINY)

    assert messages == [TINY.title, f"{TINY.title}: bare, round 1", f"{TINY.title}: retinue, round 1"]
    assert [(each.system, each.problem) for each in again.samples.items] == [("bare", ""), ("retinue", "")]
    for each in again.samples.items:
        assert each.facts["cpu"] > 0
        assert each.facts["written"] > 0


def test_samples_of_another_code_version_and_failed_samples_are_not_reused(tmp_path: Path):
    file, fingerprints = tmp_path / "samples.jsonl", {"retinue": "one", "agno": "two"}
    before = Samples(file, fingerprints)
    for system in fingerprints:
        before.add(Sample(row="turn", variant="persisted", system=system, facts={"cpu": 1.0}))
    before.add(Sample(row="load", variant="10", system="agno", problem="took more than 120 s"))
    before.add(Sample(row="wake", variant="10", system="agno", problem="has no idle agents", able=False))

    after = Samples(file, fingerprints | {"retinue": "three"})

    assert [(each.row, each.system) for each in after.items] == [("turn", "agno"), ("wake", "agno")]


async def test_a_system_that_answers_wrongly_crashes_or_loses_sessions_gets_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    behaviours = {
        "wrong": "async def run_turn(self, number): return 'Something else.'",
        "dead": "async def run_turn(self, number): import os; os._exit(3)",
        "unable": "cannot = {'run_turn': 'it takes no turns'}",
        "forgetful": f"async def run_turn(self, number): return {NOTE_REPLY!r}\n    def count_sessions(self): return 3",
    }
    for name, behaviour in behaviours.items():
        (tmp_path / f"{name}.py").write_text(
            f"class Subject:\n    async def open(self, **_): ...\n    async def create_sessions(self, count): ...\n    {behaviour}\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment = make_environment(
        "http://127.0.0.1:9", tmp_path, *(System(name=name, module=name) for name in behaviours)
    )

    await measure_workload(environment, replace(TINY, system_names=frozenset({"wrong", "dead", "unable"})))
    await measure_workload(
        environment, replace(TINY, system_names=frozenset({"forgetful"}), min_new_sessions=2)
    )

    assert [(each.system, each.problem, each.able, each.facts) for each in environment.samples.items] == [
        ("wrong", "unexpected reply 'Something else.'", True, {}),
        ("dead", "the process ended", True, {}),
        ("unable", "it takes no turns", False, {}),
        ("forgetful", "only 0 of 2 sessions are on disk", True, {}),
    ]
