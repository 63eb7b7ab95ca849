"""A stand-in for the local model's process, with scripted answers and failures.

The plan is a JSON file:
    broken: Report this error instead of becoming ready.
    likely: List of [part of a prompt, {piece: log probability}]; the first part that occurs counts.
    says: Texts generated one after another, across restarts.
    dies: Numbers of the requests after which the process is killed.
    dies_loading: Die once before becoming ready.
    silent: Numbers of the requests that are never answered.
Received requests are appended to PLAN.asked.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retinue.isolated_python import module_command

DEFAULT_LOGPROBS = {" ": -1.0}


def local_model_command(plan: Path) -> list[str]:
    return module_command("retinue.testing.local_model", str(plan))


def read_received_requests(plan: Path) -> list[dict[str, Any]]:
    """Return every request received, by all processes of this plan."""
    log_file = plan.with_suffix(".asked")
    return (
        [json.loads(line) for line in log_file.read_text(encoding="utf-8").splitlines()]
        if log_file.exists()
        else []
    )


def main(plan_path: str) -> None:
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    _write_line(loading=0.5)
    if plan.get("dies_loading") and not (log_file := Path(plan_path).with_suffix(".asked")).exists():
        log_file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.get("broken"):
        _write_line(load_error=plan["broken"])
        return
    _write_line(loading=1.0)
    _write_line(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        earlier_requests = read_received_requests(Path(plan_path))
        with Path(plan_path).with_suffix(".asked").open("a", encoding="utf-8") as log_file:
            log_file.write(json.dumps({**request, "pid": os.getpid()}) + "\n")
        if not request.get("stop"):
            _answer_request(plan, request, [each for each in earlier_requests if not each.get("stop")])


def _answer_request(
    plan: dict[str, Any], request: dict[str, Any], earlier_requests: Sequence[dict[str, Any]]
) -> None:
    number = len(earlier_requests) + 1
    if number in plan.get("silent", ()):
        return
    usage = {"input": len(request["prompt"].split()), "output": 1}
    if "top" in request:
        matches = (
            logprobs for prompt_part, logprobs in plan.get("likely", ()) if prompt_part in request["prompt"]
        )
        _write_line(id=request["id"], top=next(matches, DEFAULT_LOGPROBS), **usage)
    else:
        text_count = sum(1 for each in earlier_requests if "top" not in each)
        text: str = plan["says"][text_count % len(plan["says"])]
        for piece in text.split(" "):
            _write_line(id=request["id"], text=f"{piece} ")
        if number not in plan.get("dies", ()):
            _write_line(id=request["id"], end="stop", **usage)
    if number in plan.get("dies", ()):
        os.kill(os.getpid(), signal.SIGKILL)


def _write_line(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
