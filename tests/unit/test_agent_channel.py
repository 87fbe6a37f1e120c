"""Messages between agent and guardian: whole, in order, with their descriptors, bounded."""

import os
import select
import socket
from typing import Any

import pytest

from jobstream.agent import channel as module
from jobstream.agent.channel import Channel, ChannelClosed


def pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left), Channel(right)


def receive_all(sender: Channel, receiver: Channel, count: int) -> list[tuple[dict[str, Any], int | None]]:
    found: list[tuple[dict[str, Any], int | None]] = []
    while len(found) < count:
        assert select.select([receiver.socket], [], [], 5)[0], f"{len(found)} of {count} arrived"
        found += receiver.receive()
        sender.flush()
    return found


def test_messages_arrive_in_order_also_where_the_socket_is_full() -> None:
    left, right = pair()
    sent = [{"n": number, "text": "x" * (number * 37 % 5_000)} for number in range(500)]
    for message in sent:
        left.send(message)
    assert left.pending
    assert [message for message, _ in receive_all(left, right, 500)] == sent
    assert not left.pending
    assert right.receive() == []


def test_each_descriptor_arrives_with_its_message_and_is_not_inherited() -> None:
    left, right = pair()
    pipes = [os.pipe() for _ in range(50)]
    for number, (reading, writing) in enumerate(pipes):
        os.write(writing, b"%d" % number)
        left.send({"n": number, "fill": "y" * 3_000}, reading if number % 2 else None)
        os.close(reading)  # ours; what is sent is a duplicate
        os.close(writing)
    for message, descriptor in receive_all(left, right, 50):
        assert (descriptor is not None) == bool(message["n"] % 2)
        if descriptor is not None:
            assert os.read(descriptor, 10) == b"%d" % message["n"]
            assert not os.get_inheritable(descriptor)


def test_the_end_of_the_peer_is_told_after_its_last_message() -> None:
    left, right = pair()
    left.send({"n": 1})
    left.socket.close()
    assert right.receive() == [({"n": 1}, None)]
    with pytest.raises(ChannelClosed):
        right.receive()
    with pytest.raises(ChannelClosed):
        right.send({"n": 2})


def test_a_message_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_BYTES_MAX", 1_000)
    left, right = pair()
    left.socket.send(b"x" * 2_000)
    with pytest.raises(ChannelClosed, match="over 1000 bytes"):
        right.receive()


def test_a_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 1_000_000)
    left, _right = pair()
    with pytest.raises(ChannelClosed, match="has not read"):
        for _ in range(100):
            left.send({"fill": "z" * 50_000})
