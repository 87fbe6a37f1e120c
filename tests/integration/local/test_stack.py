"""What a stack is made of, without starting it."""

import os
from pathlib import Path

import pytest

from jobstream.local import postgres, stack, state
from jobstream.local.java import Java
from jobstream.local.paths import Layout
from jobstream.local.supervisor import Child, Restart
from jobstream.runtime.config import load_settings

JAVA = Java(executable=Path("/java"), classpath="", aot=Path("/none"))


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name in list(os.environ):
        if name.startswith("JOBSTREAM_"):
            monkeypatch.delenv(name)
    layout = Layout(data=tmp_path / "data")
    layout.make()
    return layout


def children_of(layout: Layout, agents: int | None) -> dict[str, Child]:
    return {child.name: child for child in stack.children(stack.plan(layout, JAVA, agents))}


def test_servers_alone(layout: Layout) -> None:
    assert list(children_of(layout, None)) == ["kafka", "postgres"]


def test_whole_stack_starts_in_an_order_that_can_be_followed(layout: Layout) -> None:
    started: set[str] = set()
    for child in children_of(layout, agents=2).values():
        assert started.issuperset(child.after), child.name
        started.add(child.name)
    assert {"kafka", "postgres", "migrate", "topics", "keys", "scheduler", "projector", "api"} < started
    assert {"agent-local-1", "agent-local-2"} < started


def test_nothing_is_stopped_before_what_needs_it(layout: Layout) -> None:
    """Agents first, then services, the servers last; for what is stopped is what nobody comes after any more."""
    children = children_of(layout, agents=1)
    left = {name for name, child in children.items() if child.restart is Restart.ALWAYS}

    def needs(name: str) -> set[str]:
        direct = {*children[name].after, *children[name].outlived_by}
        return direct.union(*(needs(other) for other in direct))

    assert needs("agent-local-1") >= left - {"agent-local-1"}
    for service in ("api", "scheduler", "projector"):
        assert needs(service) >= {"kafka", "postgres"}


def test_services_get_settings_that_work(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    command = children_of(layout, agents=1)["api"].command()
    for name, value in command.env.items():
        if name.startswith("JOBSTREAM_"):
            monkeypatch.setenv(name, value)
    settings = load_settings()
    ports = state.ports(layout, ("kafka", "controller", "api"))
    assert settings.kafka == f"127.0.0.1:{ports['kafka']}"
    assert settings.api_port == ports["api"]
    assert settings.postgres.get_secret_value() == postgres.dsn(layout)
    assert settings.data == layout.data
    assert settings.log_store_url == (layout.data / "job-logs").as_uri()
    assert settings.replication_factor == 1
    assert settings.unsafe_replication


def test_agents_differ_in_their_machine_and_know_no_password(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    children = children_of(layout, agents=2)
    commands = [children[f"agent-local-{number}"].command() for number in (1, 2)]
    assert [command.env["JOBSTREAM_MACHINE_ID"] for command in commands] == ["local-1", "local-2"]
    password = layout.postgres_password.read_text()
    for command in commands:
        assert password not in "".join([*command.argv, *command.env.values()])
    for name, value in commands[0].env.items():
        if name.startswith("JOBSTREAM_"):
            monkeypatch.setenv(name, value)
    assert load_settings().labels == {"zone": "local"}


def test_no_password_is_on_a_command_line(layout: Layout) -> None:
    """Every user of the machine can read those."""
    password = postgres.dsn(layout).split(":")[2].split("@")[0]
    for name, child in children_of(layout, agents=1).items():
        if name not in ("kafka", "postgres"):
            assert password not in " ".join(child.command().argv), name
    assert password not in " ".join(postgres.command(layout).argv)
    layout.socket.rmdir()
