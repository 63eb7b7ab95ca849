"""openai-agents: `Runner.run` with a `SQLiteSession`, as its documentation does it."""

import sqlite3
import uuid
from pathlib import Path

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)


class Subject:
    cannot = {}

    async def open(self, url, place, keep=True):
        self.place, self.keep = Path(place), keep
        self.client = AsyncOpenAI(base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300)
        self.model = OpenAIChatCompletionsModel(model="bench", openai_client=self.client)
        self.agent = self.made("Reader")
        self.parent = self.made("Parent", parent=True)
        self.idlers = []

    async def close(self):
        await self.client.close()

    def made(self, name, parent=False):
        @function_tool
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        @function_tool
        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.ran(self.agent, task, self.session(str(uuid.uuid4())))

        tools = [child] if parent else [read]
        return Agent(name=name, instructions="You do what you are asked.", model=self.model, tools=tools)

    def session(self, name):
        return SQLiteSession(name, self.place / "sessions.db") if self.keep else None

    async def ran(self, agent, text, session):
        return (await Runner.run(agent, text, session=session)).final_output

    async def sessions(self, count):
        self.kept = [self.session(f"session-{number}") for number in range(count)]
        for number in range(count):
            await self.turn(number)

    async def turn(self, number):
        return await self.ran(self.agent, "Read the note.", self.kept[number])

    async def first(self, number):
        return await self.ran(self.agent, "Read the note.", self.session(f"first-{number}"))

    async def hello(self, number):
        return await self.ran(self.agent, "Hello there.", self.kept[number])

    async def stream(self, number):
        said = []
        result = Runner.run_streamed(self.agent, "Say it all.", session=self.kept[number])
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                said.append(event.data.delta)
        return "".join(said)

    async def crowd(self, number):
        return await self.ran(self.parent, "Start them all.", self.session(f"parent-{number}"))

    def stored(self):
        with sqlite3.connect(self.place / "sessions.db") as db:
            return db.execute("SELECT COUNT(*) FROM agent_sessions").fetchone()[0]

    async def past(self, lines):
        session = self.session("past")
        roles = ("user", "assistant")
        await session.add_items(
            [{"role": roles[number % 2], "content": line} for number, line in enumerate(lines)]
        )
        self.kept = [session]

    async def load(self, number):
        return "" if await SQLiteSession("past", self.place / "sessions.db").get_items() else "nothing"

    async def idle(self, count):
        self.idlers = [
            (self.made(f"Idler {number}"), self.session(f"idle-{number}")) for number in range(count)
        ]
        for number in range(count):
            await self.wake(number)

    async def wake(self, number):
        agent, session = self.idlers[number]
        return await self.ran(agent, "Read the note.", session)
