"""The list of commands fits the code, and what is printed without a command costs no imports."""

import subprocess
import sys
from importlib import import_module

import pytest
from cyclopts import App

from jobstream.cli.app import build
from jobstream.cli.commands import COMMANDS, GROUPS, Entry, overview

HEAVY = (
    "cyclopts",
    "rich",
    "pydantic",
    "pydantic_settings",
    "httpx",
    "confluent_kafka",
    "fastapi",
    "psycopg",
    "asyncio",
)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_each_command_is_where_the_list_says(entry: Entry) -> None:
    module, _, attribute = entry.target.partition(":")
    target = getattr(import_module(module), attribute)
    assert callable(target)
    if isinstance(target, App):
        assert target.name == (entry.name,)
    assert entry.group in GROUPS


def test_the_overview_has_every_command_and_the_parser_no_other() -> None:
    assert [name for name in build() if not name.startswith("-")] == [entry.name for entry in COMMANDS]
    assert all(f"  {entry.name} " in overview() for entry in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "allowed"), [((), ()), (("--help",), ()), (("submit", "--help"), ("cyclopts", "rich"))]
)
def test_help_imports_nothing_that_it_does_not_need(arguments: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    program = (
        "import sys; from jobstream.cli.__main__ import run; code = run(sys.argv[1:]); "
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: jobstream")
    assert done.stderr.strip() == str(list(allowed))
