"""Run the `jobstream` command as a user does: a process of its own, with its output and exit code."""

import subprocess
import sys

JOBSTREAM = (sys.executable, "-m", "jobstream.cli")
WITHIN_S = 60.0  # commands take below a second; a busy machine takes longer


def run(environment: dict[str, str], *arguments: str, within_s: float = WITHIN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*JOBSTREAM, *arguments), env=environment, capture_output=True, text=True, timeout=within_s, errors="replace"
    )
