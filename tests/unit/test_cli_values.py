import pytest

from jobstream.cli import values


@pytest.mark.parametrize(
    ("text", "gib"),
    [("512M", 0.5), ("512MiB", 0.5), ("2G", 2.0), ("2gb", 2.0), ("1.5", 1.5), ("1T", 1024.0), (" 1G ", 1.0)],
)
def test_memory_has_units_of_1024_and_gib_by_default(text: str, gib: float) -> None:
    assert values.memory_gib(text) == gib


@pytest.mark.parametrize("text", ["", "G", "-1G", "1e3", "nan", "1 G", "1K", "1.5.5", "٣G", "1G\nx", "1" * 20])
def test_what_is_no_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="512M"):
        values.memory_gib(text)


def test_pairs_split_at_the_first_equals_sign() -> None:
    assert values.pairs(["A=1", "B=x=y", "C="], "--env") == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize("text", ["A", "=1", ""])
def test_a_pair_without_a_name_or_an_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--env takes NAME=VALUE"):
        values.pairs([text], "--env")


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice for 'A'"):
        values.pairs(["A=1", "A=2"], "--label")


def test_a_command_is_a_list_and_shell_a_text() -> None:
    assert values.command(("ls", "-l"), None) == ["ls", "-l"]
    assert values.command((), "ls | wc") == "ls | wc"


@pytest.mark.parametrize(("arguments", "shell"), [((), None), (("ls",), "ls"), ((), "  ")])
def test_no_command_or_two_are_refused(arguments: tuple[str, ...], shell: str | None) -> None:
    with pytest.raises(ValueError, match=r"--shell|after --"):
        values.command(arguments, shell)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/env", "x"], "env"),
        ("sort in | uniq", "sort"),
        (["a\nb"], "ab"),
        (["/"], "job"),
        (["x" * 300], "x" * 200),
    ],
)
def test_a_job_without_a_name_is_called_like_its_program(command: list[str] | str, name: str) -> None:
    assert values.job_name(command) == name
