"""An agent for each test, on topics of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stack.isolation import Isolation, isolated
from tests.stack.provide import Stack
from tests.support.agent_host import AgentHost


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that other users can enter, as a machine's data folder is; pytest's own are for its user alone."""
    with tempfile.TemporaryDirectory(prefix="jobstream-agent-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def topics(stack: Stack) -> Iterator[Isolation]:
    """Topics for all of these tests; each has a machine of its own."""
    with isolated(stack, "agent") as names:
        yield names


@pytest.fixture
def host(topics: Isolation, data: Path) -> Iterator[AgentHost]:
    host = AgentHost(topics, data)
    try:
        yield host
    finally:
        host.close()
