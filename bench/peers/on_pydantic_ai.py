"""Benchmark subject for pydantic-ai: `Agent.run` with its message history in SQLite, as in the
documentation's chat example.
"""

import sqlite3
import uuid
from pathlib import Path

import aiosqlite
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Subject:
    cannot = {}

    async def open(self, url, place, keep=True):
        self.place, self.db = Path(place), None
        if keep:
            self.db = await aiosqlite.connect(self.place / "messages.db")
            await self.db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, name TEXT, list TEXT)")
            await self.db.execute("CREATE INDEX named ON messages (name)")
            await self.db.commit()
        client = AsyncOpenAI(base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300)
        self.model = OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=client))
        self.agent = self.build_agent()
        self.parent = self.build_agent(parent=True)
        self.idle_agents = []

    async def close(self):
        if self.db is not None:
            await self.db.close()

    def build_agent(self, parent=False):
        agent = Agent(self.model, instructions="You do what you are asked.")
        if parent:

            @agent.tool_plain
            async def child(task: str) -> str:
                """Start a child with a task of its own."""
                return await self.run_agent(self.agent, task, str(uuid.uuid4()))

        else:

            @agent.tool_plain
            def read(path: str) -> str:
                """Read a file."""
                return (self.place / path).read_text()

        return agent

    async def load_messages(self, name):
        if self.db is None:
            return []
        messages = []
        async with self.db.execute("SELECT list FROM messages WHERE name = ? ORDER BY id", (name,)) as rows:
            async for row in rows:
                messages.extend(ModelMessagesTypeAdapter.validate_json(row[0]))
        return messages

    async def save_messages(self, name, messages):
        if self.db is not None:
            await self.db.execute("INSERT INTO messages (name, list) VALUES (?, ?)", (name, messages))
            await self.db.commit()

    async def run_agent(self, agent, text, name):
        result = await agent.run(text, message_history=await self.load_messages(name))
        await self.save_messages(name, result.new_messages_json())
        return result.output

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
        pieces, name = [], f"session-{number}"
        async with self.agent.run_stream(
            "Say it all.", message_history=await self.load_messages(name)
        ) as result:
            async for piece in result.stream_text(delta=True, debounce_by=None):
                pieces.append(piece)
        await self.save_messages(name, result.new_messages_json())
        return "".join(pieces)

    async def spawn_children(self, number):
        return await self.run_agent(self.parent, "Start them all.", f"parent-{number}")

    def count_sessions(self):
        with sqlite3.connect(self.place / "messages.db") as db:
            return db.execute("SELECT COUNT(DISTINCT name) FROM messages").fetchone()[0]

    async def write_history(self, lines):
        messages = [
            ModelResponse(parts=[TextPart(line)])
            if number % 2
            else ModelRequest(parts=[UserPromptPart(line)])
            for number, line in enumerate(lines)
        ]
        await self.save_messages("session-0", ModelMessagesTypeAdapter.dump_json(messages))

    async def load_history(self, number):
        return "" if await self.load_messages("session-0") else "nothing"

    async def create_idle_agents(self, count):
        self.idle_agents = [self.build_agent() for _ in range(count)]
        for number in range(count):
            await self.wake_agent(number)

    async def wake_agent(self, number):
        return await self.run_agent(self.idle_agents[number], "Read the note.", f"idle-{number}")
