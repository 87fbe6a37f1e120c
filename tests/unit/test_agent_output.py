"""The output of an attempt: chunks, the limit, what is lost."""

from jobstream.agent.output import BUFFER_BYTES_MAX, CHUNK_BYTES, Output, cut_marker, lost_marker


def drain(output: Output) -> bytes:
    taken = b""
    while output.due_at() is not None:
        taken += output.take()
    return taken


def test_the_first_chunk_comes_soon_and_later_ones_within_a_second() -> None:
    output = Output(10_000)
    assert output.due_at() is None
    delays = []
    for at in range(0, 80_000, 10_000):
        output.feed(b"line\n", at)
        output.feed(b"line\n", at + 30)
        due = output.due_at()
        assert due is not None
        delays.append(due - at)
        assert output.take() == b"line\nline\n"
        assert output.due_at() is None
    assert delays == [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]


def test_much_output_is_due_at_once_and_bounded_in_a_chunk() -> None:
    output = Output(100 * BUFFER_BYTES_MAX)
    output.feed(b"x" * CHUNK_BYTES, 5)
    assert output.due_at() == 0
    assert not output.full
    output.feed(b"y" * BUFFER_BYTES_MAX, 6)
    assert output.full
    assert [len(output.take()), len(output.take())] == [BUFFER_BYTES_MAX, CHUNK_BYTES]
    assert (output.chunks, output.stored, output.cut) == (2, BUFFER_BYTES_MAX + CHUNK_BYTES, False)


def test_output_up_to_the_limit_is_whole_and_one_byte_more_is_cut_with_a_marker() -> None:
    exact, over = Output(10), Output(10)
    exact.feed(b"0123456789", 1)
    over.feed(b"01234", 1)
    over.feed(b"567890", 1)
    over.feed(b"never", 1)
    assert drain(exact) == b"0123456789"
    assert drain(over) == b"0123456789" + cut_marker(10)
    assert (exact.cut, over.cut) == (False, True)
    assert not over.full
    over.feed(b"never", 2)
    assert over.due_at() is None


def test_exactly_the_limit_is_not_cut_until_more_comes() -> None:
    output = Output(10)
    output.feed(b"0123456789", 1)
    assert not output.cut
    output.feed(b"x", 1)
    assert output.cut
    assert drain(output) == b"0123456789" + cut_marker(10)


def test_what_was_lost_is_told_where_it_is_missing() -> None:
    output = Output(10_000)
    output.feed(b"a", 1)
    output.lose(5)
    output.lose(6)
    output.feed(b"b", 2)
    output.lose(7)
    output.finish(3)
    assert drain(output) == b"a" + lost_marker(11) + b"b" + lost_marker(7)
    assert output.cut
