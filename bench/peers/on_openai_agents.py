"""Benchmark subject for openai-agents: `Runner.run` with a `SQLiteSession`, as documented."""

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
        self.agent = self.build_agent("Reader")
        self.parent = self.build_agent("Parent", parent=True)
        self.idle_agents = []

    async def close(self):
        await self.client.close()

    def build_agent(self, name, parent=False):
        @function_tool
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        @function_tool
        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.run_agent(self.agent, task, self.open_session(str(uuid.uuid4())))

        tools = [child] if parent else [read]
        return Agent(name=name, instructions="You do what you are asked.", model=self.model, tools=tools)

    def open_session(self, name):
        return SQLiteSession(name, self.place / "sessions.db") if self.keep else None

    async def run_agent(self, agent, text, session):
        return (await Runner.run(agent, text, session=session)).final_output

    async def create_sessions(self, count):
        self.open_sessions = [self.open_session(f"session-{number}") for number in range(count)]
        for number in range(count):
            await self.run_turn(number)

    async def run_turn(self, number):
        return await self.run_agent(self.agent, "Read the note.", self.open_sessions[number])

    async def run_new_session(self, number):
        return await self.run_agent(self.agent, "Read the note.", self.open_session(f"first-{number}"))

    async def run_short_turn(self, number):
        return await self.run_agent(self.agent, "Hello there.", self.open_sessions[number])

    async def stream_reply(self, number):
        pieces = []
        result = Runner.run_streamed(self.agent, "Say it all.", session=self.open_sessions[number])
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                pieces.append(event.data.delta)
        return "".join(pieces)

    async def spawn_children(self, number):
        return await self.run_agent(self.parent, "Start them all.", self.open_session(f"parent-{number}"))

    def count_sessions(self):
        with sqlite3.connect(self.place / "sessions.db") as db:
            return db.execute("SELECT COUNT(*) FROM agent_sessions").fetchone()[0]

    async def write_history(self, lines):
        session = self.open_session("past")
        roles = ("user", "assistant")
        await session.add_items(
            [{"role": roles[number % 2], "content": line} for number, line in enumerate(lines)]
        )
        self.open_sessions = [session]

    async def load_history(self, number):
        return "" if await SQLiteSession("past", self.place / "sessions.db").get_items() else "nothing"

    async def create_idle_agents(self, count):
        self.idle_agents = [
            (self.build_agent(f"Idler {number}"), self.open_session(f"idle-{number}"))
            for number in range(count)
        ]
        for number in range(count):
            await self.wake_agent(number)

    async def wake_agent(self, number):
        agent, session = self.idle_agents[number]
        return await self.run_agent(agent, "Read the note.", session)
