"""Display names of agents, in all output for people."""

from cli_fixture import CliFixture

JOURNAL = "---\nname: journal\ndisplay_name: Personal Journal\ndescription: Writes.\n---\nYou write.\n"


def test_people_see_display_names_and_programs_see_names(cli: CliFixture):
    folder = cli.folder.parent / "config" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.md").write_text(JOURNAL)
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
