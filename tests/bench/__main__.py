"""Measure: `python -m tests.bench SCENARIO`. Progress goes to standard error; the last line of output is one JSON object.

No time is asserted: machines differ. Compare ratios within one run.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import latency, throughput

SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {"latency": latency.measure, "throughput": throughput.measure}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    scenario = parser.parse_args().scenario
    with tempfile.TemporaryDirectory(prefix="jobstream-bench-") as folder:
        figures = SCENARIOS[scenario](Path(folder))
    sys.stdout.write(json.dumps({"scenario": scenario, **figures}) + "\n")


if __name__ == "__main__":
    main()
