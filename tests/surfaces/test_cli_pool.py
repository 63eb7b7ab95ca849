"""`retinue pool` on a terminal's lines: who can be asked more, how many, and what happens when they are taken out."""

from cli_fixture import CliFixture

LONG = "It is in src/cron.py, and nothing else uses it."


def test_the_pool_is_shown_in_lines_for_people(cli: CliFixture):
    """Shows: B046, B047."""
    wish = {"name": "explore", "args": {"task_prompt": "Find cron."}}
    cli.script_model({"general": [{"tools": [wish, wish]}, "Done."], "explorer": [LONG]})
    assert "The pool is empty" in cli("pool", "list").err
    assert cli("run", "Where is cron?").code == 0
    heading, first, second = cli("pool", "list").out.splitlines()
    assert heading.split("  ")[0] == "AGENT ID"
    for line in (first, second):
        agent_id, key, state, uses, *_ = [each for each in line.split("  ") if each]
        assert agent_id.startswith("explorer-")
        assert key.strip().startswith("agent-explorer@")
        assert (state.strip(), uses.strip()) == ("available", "2")
    told = dict(line.split(maxsplit=1) for line in cli("pool", "stats").out.splitlines())
    assert (told["total"], told["in_use"], told["available"], told["max"]) == ("2", "0", "2", "10")


def test_who_is_not_in_the_pool_cannot_be_taken_out(cli: CliFixture):
    """Shows: B047."""
    said = cli("pool", "clear", "nobody")
    assert (said.code, said.out) == (7, "")
    assert said.err == "retinue: No agent nobody in the pool. List them with `retinue pool list`.\n"
