"""Asking a cluster: why it does not answer is told once, in the client's words."""

import pytest

from jobstream.runtime.config import Settings
from jobstream.runtime.errors import Unavailable
from jobstream.runtime.kafka import ask_cluster


def test_a_cluster_that_does_not_answer_is_told_with_the_reason_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(kafka="127.0.0.1:1")  # a port that nobody listens on
    with pytest.raises(Unavailable, match=r"Kafka at 127\.0\.0\.1:1 does not answer.*Connection refused"):
        ask_cluster(settings, lambda admin: admin.list_topics(timeout=0.5))
    assert capfd.readouterr() == ("", "")  # the client would print a line for each of its attempts
