"""What the demo's jobs run: count the identifiers in the source of Python's standard library.

A program of its own that needs nothing but Python: the demo copies it to where the jobs' user can read it. Each step writes
its result in one move, so that a step that is run again does no harm.

    demo_workload.py split FOLDER PARTS     part-1.json … in FOLDER: lists of files, of about the same size together
    demo_workload.py count LIST RESULT      from a list of files to {identifier: occurrences}
    demo_workload.py merge RESULT COUNTS…   the sum of several counts; prints the most frequent ones
"""

from __future__ import annotations  # the jobs' Python may be older than ours

import json
import keyword
import os
import sys
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST = 20
# Not of the library proper, and deliberately broken in places.
SKIPPED = frozenset(("test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "__pycache__"))


def files() -> Iterator[tuple[str, int]]:
    """The library's source files with their sizes, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and path.is_file():
                yield str(path), path.stat().st_size


def count(paths: Iterable[str]) -> Counter[str]:
    """Occurrences of each identifier; keywords are none."""
    found: Counter[str] = Counter()
    for path in paths:
        with Path(path).open("rb") as file:
            tokens = tokenize.tokenize(file.readline)
            found.update(token.string for token in tokens if token.type == tokenize.NAME)
    for word in keyword.kwlist:
        del found[word]
    return found


def split(folder: str, parts: int) -> None:
    lists: list[list[str]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for path, size in sorted(files(), key=lambda file: (-file[1], file[0])):
        smallest = sizes.index(min(sizes))
        lists[smallest].append(path)
        sizes[smallest] += size
    for number, part in enumerate(lists, 1):
        write(Path(folder, f"part-{number}.json"), part)
    print(f"{sum(map(len, lists))} files with {sum(sizes) / 1e6:.1f} MB in {parts} parts")


def merge(counts: Iterable[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for path in counts:
        total.update(json.loads(Path(path).read_text(encoding="utf-8")))
    for word, times in total.most_common(MOST):
        print(f"{times:8} {word}")
    return total


def write(target: str | Path, content: object) -> None:
    path = Path(target)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def main(step: str, target: str, *rest: str) -> None:
    if step == "split":
        split(target, int(rest[0]))
    elif step == "count":
        found = count(json.loads(Path(target).read_text(encoding="utf-8")))
        write(rest[0], found)
        print(f"{sum(found.values())} identifiers, {len(found)} different ones")
    elif step == "merge":
        write(target, merge(rest))
    else:
        raise SystemExit(f"there is no step {step!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
