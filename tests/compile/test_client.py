"""What the broker remembers of one launcher."""

from __future__ import annotations

import socket

from sm120_wheels.compile.client import Client
from sm120_wheels.compile.predict import Prediction
from sm120_wheels.compile.task import Tail

TAIL = Tail(memory=10, after=5.0)
KNOWN = Prediction(memory=100, expected=90, seconds=9.0, basis="measured", tail=TAIL)


def test_only_a_first_try_that_was_seen_from_its_start_has_a_tail() -> None:
    with socket.socket() as connection:
        client = Client(connection=connection, pid=1, folders=(), prediction=KNOWN)
        assert client.tail == TAIL
        assert client.summary(1.0, held=70)["needs"] == 70
        client.resumed = True
        assert client.tail is None
        client.resumed, client.attempt = False, 1
        assert client.tail is None
        assert client.summary(1.0)["tail"] is None
