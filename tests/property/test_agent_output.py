"""Output of any shape, taken at any moment: what comes out is what went in, up to the limit, in bounded chunks."""

from hypothesis import given
from hypothesis import strategies as st

from jobstream.agent.output import BUFFER_BYTES_MAX, Output, cut_marker


@given(
    parts=st.lists(st.binary(max_size=300) | st.none(), max_size=60),
    limit=st.integers(1, 2_000),
)
def test_output_is_the_input_up_to_the_limit(parts: list[bytes | None], limit: int) -> None:
    """None: a chunk is taken."""
    output, taken, whole = Output(limit), [], b"".join(part for part in parts if part)
    for at, part in enumerate(parts):
        if part:
            output.feed(part, at)
        elif output.due_at() is not None:
            taken.append(output.take())
    output.finish(1_000)
    while output.due_at() is not None:
        taken.append(output.take())
    assert b"".join(taken) == whole[:limit] + (cut_marker(limit) if len(whole) > limit else b"")
    assert all(0 < len(chunk) <= BUFFER_BYTES_MAX for chunk in taken)
    assert output.chunks == len(taken)
    assert output.stored == sum(map(len, taken))
    assert output.cut == (len(whole) > limit)
