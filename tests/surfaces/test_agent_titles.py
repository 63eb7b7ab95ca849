"""Display names of agents, in all output for people."""

from cli_fixture import CliFixture

JOURNAL = "---\nname: journal\ndisplay_name: Personal Journal\ndescription: Writes.\n---\nYou write.\n"


def write_agents(cli: CliFixture, **definitions: str) -> None:
    folder = cli.folder.parent / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in definitions.items():
        (folder / f"{name}.md").write_text(text)


def test_people_see_display_names_and_programs_see_names(cli: CliFixture):
    write_agents(cli, journal=JOURNAL)
    call = {"tools": [{"tool": "bash", "args": {"command": "touch x"}}]}
    cli.script_model([call, "Done."])
    run = cli("run", "--json", "--agent", "journal", "Write.")
    assert (run.code, run.json["agent"]) == (6, "journal")
    for command in (
        ("runs", "list"),
        ("runs", "history"),
        ("runs", "show", run.json["run_id"]),
        ("sessions", "list"),
        ("approvals", "list"),
        ("approvals", "show", run.json["approvals"][0]),
    ):
        assert "Personal Journal" in cli(*command).out, command
    assert "journal" in cli("agents", "list").out.split()
    assert "Personal Journal" in cli("agents", "list").out
    for command in (("runs", "list"), ("sessions", "list"), ("approvals", "list")):
        (row,) = cli(*command, "--json").json
        assert row["agent"] == "journal"
    chat = cli("chat", run.json["slug"], stdin="/sessions\n/quit\n")
    assert "Personal Journal" in chat.out


WATCHER = "---\nname: guard\ndisplay_name: Night Guard\nroles: [watcher]\ntools: [read]\n---\nYou watch.\n"


def test_people_see_the_display_names_of_watchers(cli: CliFixture):
    write_agents(cli, guard=WATCHER)
    cli.script_model(["Done."])
    slug = cli("run", "--json", "Write.").json["slug"]
    started = cli("watch", slug, "--agent", "guard")
    assert started.code == 0, started.err
    assert started.out == f"Night Guard#1 watching {slug}\n"
    assert "Night Guard#1 watching" in cli("watch", "list").out
    (row,) = cli("watch", "list", "--json").json
    assert (row["agent"], row["name"]) == ("guard", "guard#1")
    assert cli("unwatch", slug).out == f"Night Guard#1 stopped watching {slug}\n"


def test_a_run_that_waits_for_a_child_is_described_with_the_childs_display_name(cli: CliFixture):
    main = "---\nname: main\ntools: [spawn_subagent]\n---\nYou lead.\n"
    write_agents(cli, journal=JOURNAL, main=main)
    spawn = {"tool": "spawn_subagent", "args": {"agentId": "journal", "prompt": "Write."}}
    write = {"tool": "bash", "args": {"command": "touch x"}}
    script = {"main": [{"tools": [spawn]}], "journal": [{"tools": [write]}]}
    cli.script_model(script)
    run = cli("run", "--agent", "main", "Begin.")
    assert run.code == 6, run.err
    assert "is waiting for Personal Journal (journal-" in run.err
