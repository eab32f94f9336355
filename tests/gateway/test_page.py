"""The snippet of docs/feedback.md in a real browser: the page comes from another origin and holds no key."""

import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway.test_feedback_routes import asked, listed
from patience import wait_until

from nightschool.client import Client

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DOCS = Path(__file__).parents[2] / "docs" / "feedback.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"),
]


@pytest.fixture
def shop(tmp_path) -> Iterator[str]:
    """Another web server: the shop whose pages carry the buttons."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def page() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_page()
        browser.close()


def test_the_snippet_of_the_docs_works_as_it_stands(gateway, shop, page, tmp_path):
    exchange = asked(gateway)
    token = Client(gateway.url, gateway.admin).browser_token(exchange=exchange, author="visitor-7")
    [snippet] = re.findall(r"```html\n(.*?)```", DOCS.read_text(), re.DOTALL)
    filled = snippet.replace("http://127.0.0.1:8700", gateway.url).replace("TOKEN", token)
    (tmp_path / "answer.html").write_text(f"<!doctype html><meta charset=utf-8><title>Shop</title>{filled}")
    page.goto(f"{shop}/answer.html")
    page.get_by_label("Bad answer").click()
    page.get_by_text("Thank you.").wait_for()
    page.get_by_label("What was wrong?").fill("It named the wrong day.")
    page.get_by_role("button", name="Send").click()
    wait_until(lambda: len(listed(gateway, f"exchange={exchange}")) == 2)
    assert [(row["value"], row["author"], row["origin"]) for row in listed(gateway, f"exchange={exchange}")] == [
        (False, "visitor-7", "browser"),
        ("It named the wrong day.", "visitor-7", "browser"),
    ]
    # The same page may not use any other route, whatever it knows.
    status = page.evaluate(
        """async ([url, key]) => await fetch(url + "/v1/feedback?state=parked", {headers: {Authorization: key}})
            .then((reply) => reply.status, () => "kept out")""",
        [gateway.url, f"Bearer {gateway.admin}"],
    )
    assert status == "kept out"
    # A token that has expired is told as such.
    stale = Client(gateway.url, gateway.admin).browser_token(exchange=exchange, expires_in_s=0.001)
    page.evaluate("(token) => document.querySelector('form').dataset.token = token", stale)
    page.get_by_label("Good answer").click()
    page.get_by_text("That did not work.").wait_for()
