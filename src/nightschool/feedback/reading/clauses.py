"""Which parts of a sentence state something, and which could be an order.

What users write may reach a teacher only as a report of what happened. So a sentence is kept from its beginning for as
long as every clause begins as statements do: with a subject, a negation, a preposition, a form in -ing or -ed, a word
of praise or blame. Where a clause begins in another way (a bare verb does), or speaks of what must be, always or from
now on, the rest goes.
"""

from __future__ import annotations

import re

from nightschool.feedback.reading.polarity import BLAME, PRAISE

CLAUSE = re.compile(r"(\s*(?:[,;–—()]|:(?=\s|$))\s*|\s+-\s+|\s+(?:and|so|then|but|or|therefore|thus|plus)\s+)", re.I)
_OPENERS = (
    "i i'm i've i'd i'll we we're we've my our mine me you you're you've you'd your yours it it's its this that "
    "that's these those there there's they they're their he she his her him them us the a an any some both each other "
    "another not no none nothing nobody never neither nor what which who whose why how where when whether while until "
    "because since after before although though if as like than instead without with within in on at of for from by "
    "to about into over under between against was were wasn't weren't is isn't are aren't am had hadn't has hasn't "
    "have haven't did didn't does doesn't could couldn't would wouldn't cannot can't won't and but so or also too "
    "very really quite just only still even again already yet almost totally completely absolutely simply honestly "
    "frankly sadly unfortunately actually apparently maybe perhaps sorry ok okay well yes hi hello more less much "
    "many most few twice once one two three four five several today yesterday here all everything everyone somebody "
    "someone something half took got gave told said sent went came made found felt kept left lost paid bought ordered "
    "wrote read quick slow late early long short same different"
)
OPENERS = frozenset(_OPENERS.split()) | frozenset(f"{PRAISE['en']} {BLAME['en']}".split())
_THINGS = (
    "order orders number question questions answer answers reply replies parcel refund account money email time "
    "times day days week weeks hour hours month help information problem issue customer service support shop "
    "product price card name address message form call agent bot assistant person wrong right new old first second "
    "third last again back way be"
)
ENGLISH = OPENERS | frozenset(_THINGS.split())
MIN_ENGLISH = 0.4  # of a clause's words: what is written in another language could say anything
_BARE = "bring sing ring fling sting spring string embed feed need shed speed heed proceed exceed succeed"
BARE = frozenset(_BARE.split())
# What may stand before a bare verb as well as before a statement: the next word decides.
_ADVERBS = (
    "and but so or also too very really quite just only still even again already yet almost totally completely "
    "absolutely simply honestly frankly sadly unfortunately actually apparently maybe perhaps sorry ok okay well "
    "yes hi hello not never thanks thank now here today please"
)
ADVERBS = frozenset(_ADVERBS.split())
# What may introduce an order as well as a statement: somebody has to do something after it.
_LEADING = (
    "until because since after before although though if as like than instead without with within in on at of for "
    "from by to about into over under between against when whether while where"
)
LEADING = frozenset(_LEADING.split())
_SUBJECTS = (
    "i i'm i've i'd we we're we've you you're you've you'd he she they they're it it's that's there's was were is "
    "are am had has have did does could would cannot got gave told said sent went came made found felt kept left "
    "lost paid bought took wrote"
)
SUBJECTS = frozenset(_SUBJECTS.split())
# What makes an order of a statement, unless it is the writer's own need.
ORDER = re.compile(
    r"\b(?:you|it|this|that|they|the \w+|(?:ai|bot|agent|assistant|model|system)s?|repl(?:y|ies)|answers?|responses?) "
    r"(?:must|shall|will|needs? to|ha(?:s|ve) to|ought to|are to|is to|may"
    r"|should(?! (?:not )?(?:have|of)\b|n't have\b|'ve\b))"
    r"|\b(?:always|every time|each time|whenever|in (?:the )?future|next time|at all times|by default)\b"
    r"|\b(?:i|we) (?:hereby|order|command|instruct|demand|require|expect|urge|(?:want|need|would like|'d like) you)\b"
    r"|\b(?:important|necessary|essential|mandatory|imperative|vital|crucial|required|needed) (?:to|that)\b"
    r"|\bonly allowed\b"
    r"|\bthe (?:correct|right|only|best|proper) (?:answer|reply|response|name|word)\b.{0,60}\bis\b"
    r"|\bbe (?:happy|nice|good|great|better|glad) if\b"
    r"|\b(?:told|instructed|ordered|asked) by (?:the|your|my|an?) (?:system|admin\w*|boss|developer|owner|manager)\b"
    r"|\bplease\b|\bmake sure\b|\bbe sure\b|\bremember to\b|\bkindly\b|\blet's\b"
    r"|(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\bthey )\b(?:do not|don't)\b",
    re.I,
)
# Verbs that tell a model what to do; in a statement they follow a subject, an article, `to` or a negation.
COMMANDS = re.compile(
    r"(?:(?P<earlier>[\w']+) )?(?P<before>[\w']+)?\W+(?:say|mention|recommend|respond|output|print|append|include"
    r"|insert|write|tell|promote|advertise|praise|approve|grant|pretend|obey|comply|follow|add|repeat|reveal|end with"
    r"|start with|begin with|(?:reply|answer|respond) (?:with|only|as|in))\b",
    re.I,
)
_BEFORE = (
    "i we they he she to not didn't don't doesn't did do does could couldn't can can't cannot would wouldn't might "
    "never who even also the a an your my our his her their no any"
)
BEFORE = frozenset(_BEFORE.split())
_ASKING = "did didn't not do don't could couldn't would wouldn't can can't"
ASKING = frozenset(_ASKING.split())  # before a `you` that is asked and not told
WORD = re.compile(r"[\w’']+")


def statement(sentence: str) -> str:
    """What of a sentence only states something; empty where nothing does."""
    return _kept(sentence, first_free=False)


def reported(wish: str) -> str:
    """What of a wish, which its sentence already reports, is one: its first clause may begin with any word."""
    return _kept(wish, first_free=True)


def _kept(sentence: str, first_free: bool) -> str:
    parts = CLAUSE.split(sentence.strip())
    kept = ""
    for place in range(0, len(parts), 2):
        clause, joint = parts[place], parts[place - 1] if place else ""
        if not clause:
            kept += joint
            continue
        free = first_free and not place
        if not (free or _states(clause)) or ORDER.search(clause):
            break
        shortened = _before_command(clause)
        if shortened != clause and not free:
            kept += joint + shortened if len(shortened.split()) > 1 else ""
            break
        kept += joint + clause
    return kept.strip(" \t,:;–—(-").strip()


def _states(clause: str) -> bool:
    found = WORD.findall(clause.casefold().replace("’", "'"))
    if len(found) <= 1:
        return bool(found)
    if sum(map(_is_english, found)) < MIN_ENGLISH * len(found):
        return False
    start = next((place for place, word in enumerate(found) if word not in ADVERBS), len(found) - 1)
    first, rest = found[start], found[start + 1 :]
    if first in BARE:
        return False
    if first in LEADING:
        return any(map(_tells, rest))
    return first in OPENERS or first.endswith(("ing", "ed")) or first.isdecimal()


def _tells(word: str) -> bool:
    """Whether a word shows that somebody did, was or had something."""
    return word in SUBJECTS or word.endswith("n't") or (word.endswith("ed") and word not in BARE)


def _is_english(word: str) -> bool:
    return word in ENGLISH or word.endswith(("ing", "ed", "'s", "n't")) or word.isdecimal()


def _before_command(clause: str) -> str:
    """The clause up to a verb that nobody does in it."""
    for match in COMMANDS.finditer(clause):
        before, earlier = ((match[name] or "").casefold().replace("’", "'") for name in ("before", "earlier"))
        if before not in BEFORE and not (before == "you" and earlier in ASKING):
            return clause[: match.end("before")] if match["before"] else ""
    return clause
