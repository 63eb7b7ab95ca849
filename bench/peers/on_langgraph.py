"""Benchmark subject for langgraph: `create_agent` with `ChatOpenAI` and the SQLite checkpointer, as
documented.
"""

import sqlite3
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


class Subject:
    cannot = {}

    async def open(self, url, place, keep=True):
        self.place, self.stack, self.saver = Path(place), AsyncExitStack(), None
        if keep:
            saver_context = AsyncSqliteSaver.from_conn_string(str(self.place / "checkpoints.db"))
            self.saver = await self.stack.enter_async_context(saver_context)
        self.model = ChatOpenAI(
            model="bench", base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300
        )
        self.agent = self.build_agent()
        self.parent = self.build_agent(parent=True)
        self.idle_agents = []

    async def close(self):
        await self.stack.aclose()

    def build_agent(self, parent=False):
        @tool
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        @tool
        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.run_agent(self.agent, task, str(uuid.uuid4()))

        return create_agent(
            self.model,
            tools=[child] if parent else [read],
            system_prompt="You do what you are asked.",
            checkpointer=self.saver,
        )

    def thread_config(self, name):
        return {"configurable": {"thread_id": name}}

    async def run_agent(self, agent, text, name):
        inputs = {"messages": [{"role": "user", "content": text}]}
        return (await agent.ainvoke(inputs, self.thread_config(name)))["messages"][-1].content

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
        inputs = {"messages": [{"role": "user", "content": "Say it all."}]}
        thread = self.thread_config(f"session-{number}")
        async for piece, _ in self.agent.astream(inputs, thread, stream_mode="messages"):
            pieces.append(piece.content)
        return "".join(pieces)

    async def spawn_children(self, number):
        return await self.run_agent(self.parent, "Start them all.", f"parent-{number}")

    def count_sessions(self):
        with sqlite3.connect(self.place / "checkpoints.db") as db:
            return db.execute("SELECT COUNT(DISTINCT thread_id) FROM checkpoints").fetchone()[0]

    async def write_history(self, lines):
        kinds = (HumanMessage, AIMessage)
        messages = [kinds[number % 2](line) for number, line in enumerate(lines)]
        await self.agent.aupdate_state(self.thread_config("session-0"), {"messages": messages})

    async def load_history(self, number):
        state = await self.build_agent().aget_state(self.thread_config("session-0"))
        return "" if state.values["messages"] else "nothing"

    async def create_idle_agents(self, count):
        self.idle_agents = [self.build_agent() for _ in range(count)]
        for number in range(count):
            await self.wake_agent(number)

    async def wake_agent(self, number):
        return await self.run_agent(self.idle_agents[number], "Read the note.", f"idle-{number}")
