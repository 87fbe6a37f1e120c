"""What users type, as the API wants it. Pure; every refusal is a ValueError that says what is expected."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

MIB_PER_GIB: Final = 1024
_UNITS: Final[Mapping[str, int]] = {"M": 1, "G": MIB_PER_GIB, "T": MIB_PER_GIB * MIB_PER_GIB}  # in MiB
_MEMORY: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(?:([MGT])(?:i?B)?)?", re.ASCII | re.IGNORECASE)


def pairs(given: Iterable[str], flag: str) -> dict[str, str]:
    """`["A=1", "B=x=y"]` as a mapping; a name that is given twice is refused, since one of them would be lost."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{flag} takes NAME=VALUE, not {text!r}")
        if name in found:
            raise ValueError(f"{flag} is given twice for {name!r}")
        found[name] = value
    return found


def memory_gib(text: str) -> float:
    """`512M`, `2G`, `1.5` (GiB when there is no unit) as GiB; units are powers of 1024."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"memory is a number with M, G or T, such as 512M or 1.5G, not {text!r}")
    return float(match[1]) * _UNITS[(match[2] or "G").upper()] / MIB_PER_GIB


def command(arguments: tuple[str, ...], shell: str | None) -> list[str] | str:
    """The command of a job: a list that is run as it is, or a text for the shell."""
    if shell is not None and arguments:
        raise ValueError("give either a command after -- or --shell, not both")
    if shell is not None:
        if not shell.strip():
            raise ValueError("--shell is empty")
        return shell
    if not arguments:
        raise ValueError("no command: put it after --, as in `jobstream submit -- echo hello`")
    return list(arguments)


def job_name(command: list[str] | str) -> str:
    """A name for a job that was given none: the program that it runs."""
    first = command.split()[0] if isinstance(command, str) else command[0]
    name = "".join(character for character in first.rstrip("/").rpartition("/")[2] if character.isprintable())
    return name[:200] or "job"
