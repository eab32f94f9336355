"""Replies that ask for an opinion say so in a header, and are stored as such."""

from __future__ import annotations

import pytest

from nightschool.feedback.settings import FeedbackSettings

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("stream", [False, True])
def test_a_polled_reply_says_so_and_is_known_by_it(open_gateway, share, stream):
    gateway = open_gateway(feedback=FeedbackSettings(poll=share))
    _, headers, _ = gateway.chat({**ASK, "stream": stream})
    assert headers.get("x-nightschool-poll") == ("1" if share else None)
    assert ("polled" in gateway.recorded(headers["x-nightschool-exchange"]).flags) == bool(share)
