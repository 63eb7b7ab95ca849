"""Our HTTP client reads from random bytes what aiohttp reads from them."""

import asyncio
import random

from http_oracle import open_oracle, random_response
from hypothesis import given, note
from hypothesis import strategies as st


def test_our_client_and_aiohttp_read_the_same_from_the_same_bytes():
    with asyncio.Runner() as runner:
        context = open_oracle()
        oracle = runner.run(context.__aenter__())

        @given(st.randoms(use_true_random=False))
        def read_with_both(rng: random.Random) -> None:
            pieces = random_response(rng)
            note(repr(pieces))
            assert runner.run(oracle.find_disagreement(pieces)) == ""

        try:
            read_with_both()
        finally:
            runner.run(context.__aexit__(None, None, None))
