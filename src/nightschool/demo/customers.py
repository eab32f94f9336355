"""Simulated customers: a hidden wish, a way to say it, and a way to judge what happened.

Nothing outside the demo may import this module: the learner and the gate know customers only through
what they wrote and how they rated.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# (phrasings heard by day, phrasings held out for exams and the last day); {n} is the order number
PHRASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "track_order": (
        (
            "Where is my order {n}?",
            "My parcel {n} has not come yet, when will it be here?",
            "Can you tell me when order {n} arrives?",
            "I am still waiting for {n}. Where is it now?",
            "Any news about the delivery of {n}?",
            "When do I get order {n}?",
            "Order {n} should be here by now, where is it?",
            "How long until parcel {n} is delivered?",
        ),
        (
            "Is {n} on its way? When does it arrive?",
            "Do you know where the parcel with order {n} is?",
            "I am waiting for order {n}, when is the delivery?",
        ),
    ),
    "cancel_order": (
        (
            "Please cancel order {n}.",
            "I ordered {n} by mistake, please stop it.",
            "I changed my mind, do not send {n}.",
            "Can you stop order {n}? I do not need it any more.",
            "Cancel {n} please, I found it elsewhere.",
            "Please do not ship order {n}, I want to cancel.",
            "I want to cancel my order {n}.",
            "Stop order {n} before it is sent.",
        ),
        (
            "Order {n} was a mistake, cancel it please.",
            "I do not want {n} any more, please do not send it.",
            "Can you cancel the order {n} for me?",
        ),
    ),
    "refund_order": (
        (
            "I want my money back for order {n}.",
            "Order {n} arrived broken, please refund me.",
            "The things in {n} do not work, pay me back.",
            "I sent back {n}, where is my refund?",
            "Please refund order {n}, it was the wrong size.",
            "{n} is broken. I want a refund.",
            "Can I get my money back for {n}?",
            "Give me a refund for order {n} please.",
        ),
        (
            "Order {n} is broken, I want my money back.",
            "Please pay me back for order {n}.",
            "The size of {n} was wrong, can I get a refund?",
        ),
    ),
}

HAPPY = (
    "Thanks, that is what I needed.",
    "Great, quick help.",
    "Perfect, thank you!",
    "That was easy, thanks.",
    "Good service.",
    "Very helpful, thank you.",
)
UNHAPPY = (
    "That did not help me at all.",
    "This is not what I asked for.",
    "Frustrating, I have to write again.",
    "Useless answer.",
    "You did not listen to me.",
    "Not happy with this reply.",
)

THUMB_RATE = 0.60  # of all customers leave a thumb
TEXT_RATE = 0.40  # leave a few vague words, independent of the thumb
FLIP_RATE = 0.05  # of thumbs say the opposite of what was felt


@dataclass(frozen=True, slots=True)
class Customer:
    """One person with one order. `wanted` is the tool that fulfils the hidden wish."""

    name: str
    order: str
    wanted: str
    words: str
    held_out: bool


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a customer leaves behind; `None` is silence."""

    thumb: bool | None
    text: str | None


def draw_crowd(name: str, size: int, random: Random, held_out_share: float = 0.0) -> list[Customer]:
    """`size` customers, each with an own order number, a wish and a phrasing."""
    customers = []
    for number, order in enumerate(random.sample(range(1000, 10_000), size)):
        wanted = random.choice(tuple(PHRASES))
        held_out = random.random() < held_out_share
        phrase = random.choice(PHRASES[wanted][int(held_out)])
        customers.append(Customer(f"{name}-{number}", str(order), wanted, phrase.format(n=order), held_out))
    return customers


def react(pleased: bool, random: Random) -> Reaction:
    """Thumbs from some (not always right), vague words from some, silence from the rest."""
    thumb = None
    if random.random() < THUMB_RATE:
        thumb = pleased != (random.random() < FLIP_RATE)
    text = None
    if random.random() < TEXT_RATE:
        text = random.choice(HAPPY if pleased else UNHAPPY)
    return Reaction(thumb, text)
