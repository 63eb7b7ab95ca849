"""`retinue pool` in the tables for people."""

from cli_fixture import CliFixture

LONG = "It is in src/cron.py, and nothing else uses it."


def test_pooled_agents_and_their_statistics_are_printed_as_a_table(cli: CliFixture):
    """Shows: B046, B047."""
    call = {"name": "explore", "args": {"task_prompt": "Find cron."}}
    cli.script_model({"general": [{"tools": [call, call]}, "Done."], "explorer": [LONG]})
    assert "The pool is empty" in cli("pool", "list").err
    assert cli("run", "Where is cron?").code == 0
    heading, first, second = cli("pool", "list").out.splitlines()
    assert heading.split("  ")[0] == "AGENT ID"
    for line in (first, second):
        agent_id, key, state, uses, *_ = [cell for cell in line.split("  ") if cell]
        assert agent_id.startswith("explorer-")
        assert key.strip().startswith("agent-explorer@")
        assert (state.strip(), uses.strip()) == ("available", "2")
    stats = dict(line.split(maxsplit=1) for line in cli("pool", "stats").out.splitlines())
    assert (stats["total"], stats["in_use"], stats["available"], stats["max"]) == ("2", "0", "2", "10")


def test_clearing_an_unknown_agent_from_the_pool_is_not_found(cli: CliFixture):
    """Shows: B047."""
    result = cli("pool", "clear", "nobody")
    assert (result.code, result.out) == (7, "")
    assert result.err == "retinue: No agent nobody in the pool. List them with `retinue pool list`.\n"
