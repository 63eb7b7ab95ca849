"""Benchmark subject for agent-framework: `Agent.run` with its `FileHistoryProvider`, because it has none for
SQLite.
"""

import uuid
from pathlib import Path

from agent_framework import Agent, FileHistoryProvider, Message, tool
from agent_framework.openai import OpenAIChatCompletionClient
from openai import AsyncOpenAI


class Subject:
    cannot = {}

    async def open(self, url, place, keep=True):
        self.place, self.keep = Path(place), keep
        client = AsyncOpenAI(base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300)
        self.client = OpenAIChatCompletionClient(model="bench", async_client=client)
        self.history = FileHistoryProvider(self.place / "history") if keep else None
        self.agent = self.build_agent("Reader")
        self.parent = self.build_agent("Parent", parent=True)
        self.idle_agents = []

    async def close(self):
        return

    def build_agent(self, name, parent=False):
        @tool(approval_mode="never_require")
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        @tool(approval_mode="never_require")
        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.run_agent(self.agent, task, str(uuid.uuid4()))

        return Agent(
            client=self.client,
            name=name,
            instructions="You do what you are asked.",
            tools=[child] if parent else [read],
            context_providers=[self.history] if self.keep else None,
        )

    def create_session(self, agent, name):
        return agent.create_session(session_id=name) if self.keep else None

    async def run_agent(self, agent, text, name):
        return (await agent.run(text, session=self.create_session(agent, name))).text.strip()

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
        session = self.create_session(self.agent, f"session-{number}")
        return "".join(
            [piece.text async for piece in self.agent.run("Say it all.", stream=True, session=session)]
        )

    async def spawn_children(self, number):
        return await self.run_agent(self.parent, "Start them all.", f"parent-{number}")

    def count_sessions(self):
        return len(list((self.place / "history").iterdir()))

    async def write_history(self, lines):
        roles = ("user", "assistant")
        messages = [Message(roles[number % 2], [line]) for number, line in enumerate(lines)]
        await self.history.save_messages("session-0", messages)

    async def load_history(self, number):
        return "" if await self.history.get_messages("session-0") else "nothing"

    async def create_idle_agents(self, count):
        self.idle_agents = [self.build_agent(f"Idler {number}") for number in range(count)]
        for number in range(count):
            await self.wake_agent(number)

    async def wake_agent(self, number):
        return await self.run_agent(self.idle_agents[number], "Read the note.", f"idle-{number}")
