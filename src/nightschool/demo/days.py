"""A day at the shop and an exam in the staging shop: customers in parallel, through the gateway."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

from openai import OpenAI

from nightschool.client import Client
from nightschool.demo.customers import Customer, Reaction, draw_crowd, react
from nightschool.demo.harness import Served, serve
from nightschool.demo.shop import Shop

PARALLEL = 32
HELD_OUT_SHARE = 0.5  # of exam customers speak in phrasings that are never heard by day


@dataclass(frozen=True, slots=True)
class Place:
    """Where the shop's agent is reached: the gateway's URL, the agent's alias and the admin token."""

    url: str
    agent: str
    token: str


@dataclass(frozen=True, slots=True)
class Crowd:
    """A number of customers drawn from one seed; the same crowd can visit twice."""

    name: str
    size: int
    seed: int
    held_out_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Visit:
    """One customer's visit with what really happened, known to the shop alone."""

    customer: Customer
    reply: str
    fulfilled: bool
    right_tool: bool
    reaction: Reaction


def open_day(place: Place, books: Path, crowd: Crowd, tick: Callable[[], None]) -> list[Visit]:
    """Serve a day's customers and send on what they leave behind: thumbs and words, nothing else."""
    client = OpenAI(base_url=f"{place.url}/v1", api_key="the-shop-has-no-key", timeout=600)
    feedback = Client(place.url, place.token)

    def report(served: Served, visit: Visit) -> None:
        said = visit.reaction
        if said.thumb is not None:
            feedback.feedback(session=served.completion_id, thumb=said.thumb, author=visit.customer.name)
        if said.text is not None:
            feedback.feedback(session=served.completion_id, text=said.text, author=visit.customer.name)
        tick()

    return _receive(client, place.agent, books, crowd, report)


def sit_exam(place: Place, exam_id: str, model: str, crowd: Crowd, tick: Callable[[], None]) -> list[Visit]:
    """A crowd visits a staging shop that asks for one policy; the shop reports its books' final state.

    Only here does an outcome go to the store, so training never sees one.
    """
    headers = {"X-Nightschool-Exam": exam_id}
    client = OpenAI(base_url=f"{place.url}/v1", api_key=place.token, default_headers=headers, timeout=600)
    feedback = Client(place.url, place.token)

    def report(served: Served, visit: Visit) -> None:
        feedback.feedback(session=served.completion_id, outcome={"success": visit.fulfilled}, source="code")
        tick()

    return _receive(client, model, ":memory:", crowd, report)


def _receive(
    client: OpenAI, model: str, books: Path | str, crowd: Crowd, report: Callable[[Served, Visit], None]
) -> list[Visit]:
    random = Random(f"{crowd.name} {crowd.seed}")
    customers = draw_crowd(f"{crowd.name}-{crowd.seed}", crowd.size, random, crowd.held_out_share)
    shop = Shop(books)
    for customer in customers:
        shop.place_order(customer.order, random)

    def visit(customer: Customer) -> Visit:
        served = serve(client, model, shop, customer.name, customer.words)
        done = _judge(shop, customer, served)
        report(served, done)
        return done

    with client, ThreadPoolExecutor(PARALLEL) as pool:
        visits = list(pool.map(visit, customers))
    shop.close()
    return visits


def _judge(shop: Shop, customer: Customer, served: Served) -> Visit:
    """What the shop's books say about a visit, and how the customer takes it."""
    fulfilled = shop.fulfilled(customer.name, customer.order, customer.wanted)
    calls = shop.calls(customer.name)
    right_tool = bool(calls) and calls[0][:2] == (customer.wanted, customer.order)
    return Visit(customer, served.reply, fulfilled, right_tool, react(fulfilled, Random(f"{customer.name} reacts")))
