"""A real Kafka and a real PostgreSQL for the tests that ask for them: one stack a run, shared by xdist's workers.

`stack` gives the addresses, `isolation` a topic prefix and a schema of the test's own. The stack starts with the first test
that wants it. `JOBSTREAM_TEST_STACK=PATH` of a stack.json uses one that runs already.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tests` is importable however pytest was started

from tests.stack.isolation import Isolation, isolated
from tests.stack.provide import Provider, Stack, containers_unavailable, provider_of

FOLDER = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stack",
        choices=("embedded", "containers"),
        default="embedded",
        help="where Kafka and PostgreSQL come from: the embedded stack (default), or containers (needs a Docker engine)",
    )


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", None)
    config.stash[FOLDER] = Path(given["stack"]) if given else Path(tempfile.mkdtemp(prefix="jobstream-tests-"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: pytest.Item) -> None:
    """xdist: tell a worker where the run's stack is."""
    node.workerinput["stack"] = str(node.config.stash[FOLDER])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and FOLDER in config.stash:
        _provider(config).stop()
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Stack:
    """The run's Kafka and PostgreSQL."""
    if request.config.getoption("stack") == "containers" and (reason := containers_unavailable()):
        pytest.skip(reason)
    return _provider(request.config).start()


@pytest.fixture
def isolation(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Isolation]:
    """Names of the test's own on the shared stack; what was made under them is removed afterwards."""
    with isolated(stack, request.node.name) as names:
        yield names


def _provider(config: pytest.Config) -> Provider:
    return provider_of(config.getoption("stack"), config.stash[FOLDER])
