"""Benchmark subject for agno: `Agent.arun` with its asynchronous SQLite database and the whole history in the
context.
"""

import sqlite3
import uuid
from pathlib import Path

from agno.agent import Agent
from agno.db.sqlite import AsyncSqliteDb
from agno.models.message import Message
from agno.models.openai import OpenAIChat
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession

MAX_HISTORY_RUNS = 1_000_000
"""History runs sent with each request: agno's default is three, while the other systems send everything."""
MESSAGES_PER_RUN = 100
"""History messages stored per run."""


class Subject:
    cannot = {}

    async def open(self, url, place, keep=True):
        self.place = Path(place)
        self.model = OpenAIChat(
            id="bench", base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300
        )
        self.db = AsyncSqliteDb(db_file=str(self.place / "agno.db")) if keep else None
        self.agent = self.build_agent("reader")
        self.parent = self.build_agent("parent", parent=True)
        self.idle_agents = []

    async def close(self):
        if self.db is not None:
            await self.db.close()

    def build_agent(self, name, parent=False):
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.run_agent(self.agent, task, str(uuid.uuid4()))

        return Agent(
            id=name,
            model=self.model,
            instructions="You do what you are asked.",
            tools=[child] if parent else [read],
            db=self.db,
            add_history_to_context=self.db is not None,
            num_history_runs=MAX_HISTORY_RUNS,
            telemetry=False,
        )

    async def run_agent(self, agent, text, name):
        return (await agent.arun(text, session_id=name)).content

    async def create_sessions(self, count):
        for number in range(count):
            await self.run_turn(number)

    async def run_turn(self, number):
        return await self.run_agent(self.agent, "Read the note.", f"session-{number}")

    async def run_new_session(self, number):
        return await self.run_agent(self.agent, "Read the note.", f"first-{number}")

    async def run_short_turn(self, number):
        return await self.run_agent(self.agent, "Hello there.", f"session-{number}")

    async def stream_reply(self, number):
        pieces = []
        async for event in self.agent.arun("Say it all.", session_id=f"session-{number}", stream=True):
            if event.event == "RunContent" and event.content:
                pieces.append(event.content)
        return "".join(pieces)

    async def spawn_children(self, number):
        return await self.run_agent(self.parent, "Start them all.", f"parent-{number}")

    def count_sessions(self):
        with sqlite3.connect(self.place / "agno.db") as db:
            return db.execute("SELECT COUNT(DISTINCT session_id) FROM agno_runs").fetchone()[0]

    async def write_history(self, lines):
        session = AgentSession(session_id="session-0", agent_id="reader", session_data={})
        await self.agent.asave_session(session)
        for index, start in enumerate(range(0, len(lines), MESSAGES_PER_RUN)):
            roles = ("user", "assistant")
            messages = [
                Message(role=roles[number % 2], content=line)
                for number, line in enumerate(lines[start : start + MESSAGES_PER_RUN])
            ]
            run = RunOutput(
                run_id=f"past-{index}",
                agent_id="reader",
                session_id="session-0",
                status=RunStatus.completed,
                content=messages[-1].content,
                messages=messages,
            )
            await self.db.upsert_run(run, "session-0", run_index=index)

    async def load_history(self, number):
        session = await self.agent.aget_session("session-0")
        return "" if session is not None and session.runs else "nothing"

    async def create_idle_agents(self, count):
        self.idle_agents = [self.build_agent(f"idler-{number}") for number in range(count)]
        for number in range(count):
            await self.wake_agent(number)

    async def wake_agent(self, number):
        return await self.run_agent(self.idle_agents[number], "Read the note.", f"idle-{number}")
