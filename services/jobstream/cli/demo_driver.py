"""The demo's workload, driven through the REST API in stages, since jobs cannot depend on each other yet."""

import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from jobstream.cli.client import Client
from jobstream.cli.demo_screen import Screen
from jobstream.cli.exit_codes import has_ended
from jobstream.runtime.errors import JobstreamError

PARTS: Final = 8
POLL_S: Final = 0.05  # one request that lists every job; for the eye, and for a cancel that is in time
ENDED_WITHIN_S: Final = 150.0  # it takes seconds; a machine that is ten times slower still gets there
OWN_COUNT_WITHIN_S: Final = 120.0
FAILING_EXIT_CODE: Final = 3
RESOURCES: Final = {"cpu": 1, "memory_gb": 0.25}
LIMIT_JOBS: Final = 100

SPLIT, MERGE, FAILING, CANCELLED = "list and split", "merge", "fails on purpose", "is cancelled"
COUNTS: Final = tuple(f"count part {number}" for number in range(1, PARTS + 1))


class Driver:
    """Submits the workload and watches it. `python` and `folder` are an interpreter and a folder that jobs can use."""

    def __init__(self, client: Client, screen: Screen, *, python: str, program: Path, folder: Path) -> None:
        self._client = client
        self._screen = screen
        self._step = (python, "-I", str(program))
        self._python = python
        self._folder = folder
        self._ids: dict[str, str] = {}
        self._deadline = time.monotonic() + ENDED_WITHIN_S

    def run(self) -> list[str]:
        """Run everything; returns a sentence for each thing that is not as it should be."""
        napping = "import time; print('working', flush=True); time.sleep(600)"
        with ThreadPoolExecutor(1) as beside:
            own: Future[dict[str, int]] = beside.submit(self._own_count)
            self._submit(
                {
                    SPLIT: [*self._step, "split", str(self._folder), str(PARTS)],
                    FAILING: [self._python, "-I", "-c", f"import sys; sys.exit({FAILING_EXIT_CODE})"],
                    CANCELLED: [self._python, "-I", "-c", napping],
                }
            )
            self._until_ended([SPLIT])
            lists = [str(self._folder / f"part-{number}.json") for number in range(1, PARTS + 1)]
            counts = [str(self._folder / f"count-{number}.json") for number in range(1, PARTS + 1)]
            steps = zip(COUNTS, lists, counts, strict=True)
            self._submit({label: [*self._step, "count", listed, result] for label, listed, result in steps})
            self._cancel_while_running()
            self._until_ended(COUNTS)
            merged = self._folder / "merged.json"
            self._submit({MERGE: [*self._step, "merge", str(merged), *counts]})
            self._until_ended(self._ids)
            self._screen.say("comparing the total with a count without jobstream")
            return [*self._unexpected(), *_compare(merged, own.result())]

    def jobs(self) -> dict[str, Any]:
        """Every job with its attempts, in the order of submission."""
        return {label: self._client.job(job_id) for label, job_id in self._ids.items()}

    def most_frequent(self) -> str:
        """What the merging job has printed."""
        return b"".join(self._client.logs(self._ids[MERGE], attempt=None, follow=False)).decode()

    def _submit(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Submit several jobs at once: each answer waits until the job can be read."""

        def post(label: str) -> dict[str, Any]:
            body = {"name": label, "command": list(commands[label]), "resources": RESOURCES, "queue": "demo"}
            return self._client.submit(body, None)

        with ThreadPoolExecutor(len(commands)) as pool:
            for label, job in zip(commands, pool.map(post, commands), strict=True):
                self._ids[label] = job["job_id"]
                self._screen.show(label, job)

    def _look(self) -> dict[str, Any]:
        """The state of every job of the demo, by label."""
        found = {job["job_id"]: job for job in self._client.jobs(queue="demo", status=None, limit=LIMIT_JOBS)}
        jobs = {label: found[job_id] for label, job_id in self._ids.items() if job_id in found}
        for label, job in jobs.items():
            self._screen.show(label, job)
        return jobs

    def _until_ended(self, labels: Iterable[str]) -> None:
        wanted = set(labels)
        while True:
            jobs = self._look()
            if all(label in jobs and has_ended(jobs[label]) for label in wanted):
                break
            self._pause(jobs)
        failed = [label for label in (SPLIT, *COUNTS) if label in wanted and jobs[label]["status"] != "completed"]
        for label in failed:  # what follows would only fail for the lack of it
            said = b"".join(self._client.logs(self._ids[label], attempt=None, follow=False)).decode(errors="replace")
            raise JobstreamError(
                f"the demo's job {label!r} ended as {jobs[label]['status']}; its output:\n{said[-2000:]}"
            )

    def _cancel_while_running(self) -> None:
        while (job := (jobs := self._look()).get(CANCELLED)) is None or job["status"] != "running":
            if job is not None and has_ended(job):
                return  # `_unexpected` says so
            self._pause(jobs)
        self._client.cancel(self._ids[CANCELLED])

    def _pause(self, jobs: dict[str, Any]) -> None:
        if time.monotonic() > self._deadline:
            open_jobs = ", ".join(f"{label} is {job['status']}" for label, job in jobs.items() if not has_ended(job))
            raise JobstreamError(f"the demo's jobs did not end within {ENDED_WITHIN_S:.0f} s: {open_jobs}")
        time.sleep(POLL_S)

    def _own_count(self) -> dict[str, int]:
        """The same count in one process, without jobstream. The same interpreter, since versions tokenize differently."""
        own = self._folder / "own"
        own.mkdir()
        for step in (("split", str(own), "1"), ("count", str(own / "part-1.json"), str(own / "count.json"))):
            subprocess.run((*self._step, *step), check=True, capture_output=True, timeout=OWN_COUNT_WITHIN_S)
        counted: dict[str, int] = json.loads((own / "count.json").read_text())
        return counted

    def _unexpected(self) -> list[str]:
        wrong = []
        for label, job in self.jobs().items():
            wanted = {FAILING: "failed", CANCELLED: "cancelled"}.get(label, "completed")
            if job["status"] != wanted:
                wrong.append(f"{label!r} ended as {job['status']}, not {wanted} ({job.get('detail') or 'no detail'})")
            elif label == FAILING and job["exit_code"] != FAILING_EXIT_CODE:
                wrong.append(f"{label!r} has the exit code {job['exit_code']}, not {FAILING_EXIT_CODE}")
        return wrong


def _compare(merged: Path, own: dict[str, int]) -> list[str]:
    total: dict[str, int] = json.loads(merged.read_text()) if merged.exists() else {}
    if total == own:
        return []
    return [f"the jobs counted {sum(total.values())} identifiers, the driver by itself {sum(own.values())}"]
