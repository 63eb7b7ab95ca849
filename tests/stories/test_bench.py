"""The benchmark: the same work by each system, figures that say how they came about, and nobody's wrong answer."""

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from retinue.errors import UsageError
from retinue.trials.bench.command import BenchOptions, machine_info
from retinue.trials.bench.page import BEGIN_MARK, END_MARK, update_page
from retinue.trials.bench.plot import render_charts
from retinue.trials.bench.report import Report
from retinue.trials.bench.rounds import BenchEnvironment, measure_workload
from retinue.trials.bench.samples import Sample, Samples
from retinue.trials.bench.scenes import NOTE_FILE, NOTE_REPLY, NOTE_TEXT
from retinue.trials.bench.server import ModelServerProtocol, ServerState
from retinue.trials.bench.system import BASELINE, MINIMUM, RETINUE, System, start_model_server
from retinue.trials.bench.table import format_report
from retinue.trials.bench.work import TURN_WORKLOADS, children_workload

TINY = replace(TURN_WORKLOADS[0], repeat_count=2, rounds=1, preparation=(("sessions", {"count": 2}),))


def sampled(**values: list[float]) -> Samples:
    """CPU of a persisted turn in milliseconds, by system."""
    samples = Samples()
    for system, found in values.items():
        for value in found:
            facts = {"cpu": value, "wall": value * 2}
            samples.add(Sample(row="turn", variant="persisted", system=system.replace("_", "-"), facts=facts))
    return samples


def reported(samples: Samples) -> Report:
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
    samples = sampled(bare=[0.5, 0.6, 0.7], retinue=[1.1, 1.0, 1.3], langgraph=[24.0, 8.0, 12.0])
    samples.add(Sample(row="turn", variant="persisted", system="agno", problem="it answered 'No.'"))
    samples.add(Sample(row="server", variant="ceiling", system="server", facts={"rate": 9000.0}))
    return reported(samples)


def test_the_table_tells_medians_over_the_bare_calls_with_their_spread_and_what_held(report: Report):
    text = "\n".join(format_report(report))

    line = next(line for line in text.splitlines() if line.startswith("one turn with one tool, persisted"))
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "one turn with one tool, persisted", "ms CPU", "0.600 (±17%)", "1.10 (1.83x, ±14%)", "12.0 (20.0x, ±67%)", "no",
    ]  # fmt: skip
    assert "at most 1/4 of the best peer (12.0 ms CPU)" in text
    assert "MISSED" not in text
    assert "load 0.1 0.2 0.3 before, 0.4 0.5 0.6 after" in text
    assert "langgraph 1.2.20" in text
    assert "the model server alone answers 9,000 requests a second" in text
    assert "agno: turn persisted: it answered 'No.'" in text
    assert "pydantic-ai: could not be installed: no such package" in text


def test_a_target_that_is_missed_says_so_for_people_and_for_programs():
    found = reported(sampled(bare=[0.5], retinue=[3.0], langgraph=[8.0], agno=[9.0]))

    assert "\n".join(format_report(found)).count("MISSED") == 2
    told = json.loads(json.dumps(found.as_json()))
    assert [(each["wanted"], each["held"]) for each in told["targets"]] == [
        ("at most 1.2 ms CPU", False),
        ("at most 1/4 of the best peer (8.00 ms CPU)", False),
    ]
    ours = next(row for row in told["rows"] if row["system"] == "retinue" and row["unit"] == "ms CPU")
    assert (ours["value"], ours["over_bare"], ours["samples"]) == (3.0, 6.0, 1)


def test_beside_a_target_stands_what_the_same_promises_cost_at_least():
    samples = sampled(bare=[0.5], floor=[1.5], retinue=[3.0])
    found = reported(samples)

    line = next(
        line for line in format_report(found) if line.startswith("one turn with one tool, persisted  at most")
    )
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "one turn with one tool, persisted", "at most 1.2 ms CPU", "1.50 ms CPU", "3.00 ms CPU", "MISSED",
    ]  # fmt: skip
    assert found.as_json()["targets"][0]["floor"] == "1.50 ms CPU"


async def test_the_floor_keeps_every_run_and_every_child_s_folder(tmp_path: Path):
    few = replace(children_workload(3, 0), rounds=1)
    here = BenchEnvironment(
        server_url="", work_dir=tmp_path, systems=[MINIMUM], samples=Samples(), on_progress=lambda _: None
    )
    async with start_model_server() as url:
        here = replace(here, server_url=url)
        await measure_workload(here, TINY)
        await measure_workload(here, few)

    assert [(each.row, each.problem) for each in here.samples.items] == [("turn", ""), ("children", "")]
    assert all(each.facts["written"] > 2048 for each in here.samples.items)


def test_the_page_gets_its_figures_between_the_marks_and_keeps_the_rest(report: Report, tmp_path: Path):
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
    assert "Load of the machine over 1, 5 and 15 minutes: 0.1 0.2 0.3 before, 0.4 0.5 0.6 after." in text
    assert "| one turn with one tool, persisted | at most 1.2 ms CPU | - | 1.10 ms CPU | held |" in text

    page.write_text("# Nothing here")
    with pytest.raises(UsageError, match="no place for the figures"):
        update_page(page, report)


def test_the_plot_is_a_picture_with_a_bar_for_each_who_did_it_and_the_limit(report: Report):
    root = ET.fromstring(render_charts(report))
    space = {"svg": "http://www.w3.org/2000/svg"}

    words = [each.text for each in root.iterfind(".//svg:text", space)]
    widths = [float(each.get("width", 0)) for each in root.iterfind(".//svg:rect", space)]
    assert {"bare", "retinue", "langgraph", "at most 1.2"} <= set(words)
    assert "agno" not in words
    assert widths == sorted(widths)
    assert len(widths) == 3
    assert len(root.findall(".//svg:line", space)) == 1


def test_a_row_that_is_not_there_is_named_beside_those_that_are():
    with pytest.raises(UsageError, match=r"no row 'trun': the rows are turn, children, stream"):
        BenchOptions(rows=("turn", "trun")).selected_rows()


async def test_the_model_gives_no_answer_to_whoever_did_not_run_the_tool():
    server = await asyncio.get_running_loop().create_server(
        lambda: ModelServerProtocol(ServerState()), "127.0.0.1", 0
    )
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/turn/0/v1/chat/completions"

    async def said(http: aiohttp.ClientSession, *messages: dict[str, str]) -> tuple[int, str]:
        async with http.post(url, json={"model": "bench", "messages": list(messages)}) as response:
            return response.status, await response.text()

    asked = {"role": "user", "content": "Read the note."}
    async with server, aiohttp.ClientSession() as http:
        first = await said(http, asked)
        untold = await said(http, asked, {"role": "tool", "content": "I did not look."})
        done = await said(http, asked, {"role": "tool", "content": NOTE_TEXT})

    assert first[0] == 200
    assert NOTE_FILE in first[1]
    assert untold[0] == 400
    assert (done[0], json.loads(done[1])["choices"][0]["message"]["content"]) == (200, NOTE_REPLY)


def ground(
    url: str, place: Path, *systems: System, told: Callable[[str], None] = lambda _: None
) -> BenchEnvironment:
    return BenchEnvironment(
        server_url=url,
        work_dir=place,
        systems=systems,
        samples=Samples(place / "samples.jsonl"),
        on_progress=told,
    )


async def test_the_systems_take_turns_at_the_same_work_and_nothing_is_measured_twice(tmp_path: Path):
    heard: list[str] = []
    async with start_model_server() as url:
        await measure_workload(ground(url, tmp_path, BASELINE, RETINUE, told=heard.append), TINY)
        again = ground(url, tmp_path, BASELINE, RETINUE, told=heard.append)
        await measure_workload(again, TINY)

    assert heard == [TINY.title, f"{TINY.title}: bare, round 1", f"{TINY.title}: retinue, round 1"]
    assert [(each.system, each.problem) for each in again.samples.items] == [("bare", ""), ("retinue", "")]
    for each in again.samples.items:
        assert each.facts["cpu"] > 0
        assert each.facts["written"] > 0


def test_samples_of_another_making_do_not_count_and_what_failed_is_tried_again(tmp_path: Path):
    file, marks = tmp_path / "samples.jsonl", {"retinue": "one", "agno": "two"}
    before = Samples(file, marks)
    for system in marks:
        before.add(Sample(row="turn", variant="persisted", system=system, facts={"cpu": 1.0}))
    before.add(Sample(row="load", variant="10", system="agno", problem="took more than 120 s"))
    before.add(Sample(row="wake", variant="10", system="agno", problem="nothing sleeps here", able=False))

    after = Samples(file, marks | {"retinue": "three"})

    assert [(each.row, each.system) for each in after.items] == [("turn", "agno"), ("wake", "agno")]


async def test_whoever_answers_wrongly_dies_cannot_or_forgets_has_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    behaviours = {
        "wrong": "async def turn(self, number): return 'Something else.'",
        "dead": "async def turn(self, number): import os; os._exit(3)",
        "unable": "cannot = {'turn': 'it takes no turns'}",
        "forgetful": f"async def turn(self, number): return {NOTE_REPLY!r}\n    def stored(self): return 3",
    }
    for name, behaviour in behaviours.items():
        (tmp_path / f"{name}.py").write_text(
            f"class Subject:\n    async def open(self, **_): ...\n    async def sessions(self, count): ...\n    {behaviour}\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = ground("http://127.0.0.1:9", tmp_path, *(System(name=name, module=name) for name in behaviours))

    await measure_workload(found, replace(TINY, system_names=frozenset({"wrong", "dead", "unable"})))
    await measure_workload(found, replace(TINY, system_names=frozenset({"forgetful"}), min_new_sessions=2))

    assert [(each.system, each.problem, each.able, each.facts) for each in found.samples.items] == [
        ("wrong", "it answered 'Something else.'", True, {}),
        ("dead", "its process ended", True, {}),
        ("unable", "it takes no turns", False, {}),
        ("forgetful", "it kept 0 of 2 sessions", True, {}),
    ]
