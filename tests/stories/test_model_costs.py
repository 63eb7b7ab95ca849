"""What runs cost, without any configured price."""

import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace
from user_machine import UserMachine

from retinue.testing.replies import text_reply, tool_call_reply

SONNET = "anthropic:claude-sonnet-5-5"


async def test_a_run_has_a_cost_without_configuration_and_cache_prices_count(machine: UserMachine):
    usage = {"input": 10_000, "output": 500, "cached": 6_000, "cache_write": 3_000}
    replies = [
        replace(tool_call_reply(("ls", {})), usage=usage),
        replace(text_reply("Done."), usage=usage),
    ]
    machine.write_agent("lister", "tools: [ls]\n")
    async with machine.serve_models(replies):
        ran = await machine("run", "--json", "--agent", "lister", "--model", SONNET, "Look.")
    expected = pytest.approx(2 * (1_000 * 2 + 6_000 * 0.1 + 3_000 * 2.5 + 500 * 10) / 1e6, abs=1e-6)
    assert (ran.code, ran.json["cost"]) == (0, expected), ran.err
    shown = (await machine("runs", "show", ran.json["run_id"], "--json")).json
    assert (shown["cost"], shown["cached_tokens"], shown["cache_write_tokens"]) == (expected, 12_000, 6_000)
    assert shown["tree"]["cost"] == expected
    assert "Cost: $0.0302" in (await machine("runs", "show", ran.json["run_id"])).out
    (row,) = (await machine("runs", "history", "--json")).json
    assert row["cost"] == expected


async def test_only_requests_with_a_long_prompt_have_the_higher_price(machine: UserMachine):
    short, long = {"input": 200_000, "output": 100}, {"input": 300_000, "output": 100, "cached": 100_000}
    replies = [
        replace(tool_call_reply(("ls", {})), usage=short),
        replace(text_reply("Done."), usage=long),
    ]
    machine.write_agent("lister", "tools: [ls]\n")
    async with machine.serve_models(replies):
        ran = await machine("run", "--json", "--agent", "lister", "--model", "openai:gpt-5.6-terra", "Look.")
    dollars = 200_000 * 2 + 100 * 12 + 200_000 * 4 + 100_000 * 0.4 + 100 * 18
    assert ran.json["cost"] == pytest.approx(dollars / 1e6, abs=1e-6)


async def test_a_configured_price_replaces_the_one_that_comes_with_retinue(machine: UserMachine):
    machine.write_config(prices={SONNET: {"input": 1.0, "output": 0.0, "cache_write": 7.0}})
    usage = {"input": 1_000, "output": 500, "cache_write": 400}
    async with machine.serve_models([replace(text_reply("Done."), usage=usage)]):
        ran = await machine("run", "--json", "--model", SONNET, "Hello.")
    assert ran.json["cost"] == pytest.approx((600 * 1.0 + 400 * 7.0) / 1e6)


async def test_the_cost_of_an_unknown_model_is_null(machine: UserMachine):
    async with machine.serve_models([text_reply("Done.")]):
        ran = await machine("run", "--json", "Hello.")
    assert (ran.code, ran.json["cost"]) == (0, None)


async def test_the_sums_of_pruned_runs_keep_what_a_price_needs(machine: UserMachine):
    usage = {"input": 300_000, "output": 100, "cached": 100_000, "cache_write": 50_000}
    async with machine.serve_models([replace(text_reply("Done."), usage=usage)] * 2):
        first = await machine("run", "--json", "--model", "openai:gpt-5.6-terra", "Hello.")
        second = await machine("run", "--json", "--model", "openai:gpt-5.6-terra", "Hello.")
    for ran in (first, second):
        assert (await machine("sessions", "delete", "--purge", ran.json["slug"])).code == 0
    with closing(sqlite3.connect(machine.home / "ledger.db")) as ledger:
        sums = ledger.execute(
            "SELECT input_tokens, cache_write_tokens, long_input_tokens, long_output_tokens, long_cached_tokens,"
            " long_cache_write_tokens FROM daily_usage"
        ).fetchall()
    assert sums == [(600_000, 100_000, 600_000, 200, 200_000, 100_000)]
