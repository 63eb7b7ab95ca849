"""langgraph: `create_agent` with `ChatOpenAI` and the SQLite checkpointer, as its documentation does it."""

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
            made = AsyncSqliteSaver.from_conn_string(str(self.place / "checkpoints.db"))
            self.saver = await self.stack.enter_async_context(made)
        self.model = ChatOpenAI(
            model="bench", base_url=url, api_key="bench-key-0000", max_retries=0, timeout=300
        )
        self.agent = self.made()
        self.parent = self.made(parent=True)
        self.idlers = []

    async def close(self):
        await self.stack.aclose()

    def made(self, parent=False):
        @tool
        def read(path: str) -> str:
            """Read a file."""
            return (self.place / path).read_text()

        @tool
        async def child(task: str) -> str:
            """Start a child with a task of its own."""
            return await self.ran(self.agent, task, str(uuid.uuid4()))

        return create_agent(
            self.model,
            tools=[child] if parent else [read],
            system_prompt="You do what you are asked.",
            checkpointer=self.saver,
        )

    def thread(self, name):
        return {"configurable": {"thread_id": name}}

    async def ran(self, agent, text, name):
        asked = {"messages": [{"role": "user", "content": text}]}
        return (await agent.ainvoke(asked, self.thread(name)))["messages"][-1].content

    async def sessions(self, count):
        for number in range(count):
            await self.turn(number)

    async def turn(self, number):
        return await self.ran(self.agent, "Read the note.", f"session-{number}")

    async def first(self, number):
        return await self.ran(self.agent, "Read the note.", f"first-{number}")

    async def hello(self, number):
        return await self.ran(self.agent, "Hello there.", f"session-{number}")

    async def stream(self, number):
        said = []
        asked = {"messages": [{"role": "user", "content": "Say it all."}]}
        thread = self.thread(f"session-{number}")
        async for piece, _ in self.agent.astream(asked, thread, stream_mode="messages"):
            said.append(piece.content)
        return "".join(said)

    async def crowd(self, number):
        return await self.ran(self.parent, "Start them all.", f"parent-{number}")

    def stored(self):
        with sqlite3.connect(self.place / "checkpoints.db") as db:
            return db.execute("SELECT COUNT(DISTINCT thread_id) FROM checkpoints").fetchone()[0]

    async def past(self, lines):
        kinds = (HumanMessage, AIMessage)
        messages = [kinds[number % 2](line) for number, line in enumerate(lines)]
        await self.agent.aupdate_state(self.thread("session-0"), {"messages": messages})

    async def load(self, number):
        state = await self.made().aget_state(self.thread("session-0"))
        return "" if state.values["messages"] else "nothing"

    async def idle(self, count):
        self.idlers = [self.made() for _ in range(count)]
        for number in range(count):
            await self.wake(number)

    async def wake(self, number):
        return await self.ran(self.idlers[number], "Read the note.", f"idle-{number}")
