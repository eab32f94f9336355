"""How a text sounds, by the words in it: a score in log-odds that labels have yet to calibrate.

Words count in the languages of `plain.language_of`. A negation turns what follows it, what follows a `but` counts
twice, and praise that the text itself takes back (an eye-roll, `thanks for nothing`) is no praise.
"""

from __future__ import annotations

import re

from nightschool.feedback.reading.plain import words

PRAISE = {
    "en": "thanks thank great perfect good excellent helpful awesome amazing wonderful brilliant nice love "
    "loved happy pleased solved works worked easy quick fast friendly fantastic super satisfied "
    "appreciate clear correct kind resolved fixed best",
    "de": "danke dank super toll perfekt gut gute hilfreich prima wunderbar klasse zufrieden freundlich schnell "
    "gelöst ausgezeichnet",
    "fr": "merci super parfait bien bon excellent utile génial rapide content satisfait résolu clair aimable",
    "es": "gracias genial perfecto bien bueno excelente útil estupendo rápido contento satisfecho resuelto "
    "claro amable",
}
BLAME = {
    "en": "bad wrong useless terrible horrible awful worst frustrating frustrated annoying annoyed angry "
    "disappointed disappointing unhappy unhelpful slow rude broken incorrect ridiculous unacceptable "
    "waste wasted nonsense poor confusing confused fail failed fails failure incompetent joke pointless "
    "misleading upset disgusted hate missing ignored lied error errors refused complain complaint "
    "hopeless garbage rubbish stupid",
    "de": "falsch schlecht nutzlos schrecklich furchtbar schlimm frustrierend ärgerlich enttäuscht enttäuschend "
    "unfreundlich langsam kaputt unverschämt katastrophe unbrauchbar sinnlos unzufrieden fehler",
    "fr": "mauvais faux inutile nul nulle terrible horrible frustrant déçu décevant lent cassé inacceptable "
    "honte catastrophe incorrect erreur mécontent incompétent",
    "es": "mal malo mala incorrecto inútil terrible horrible pésimo frustrante decepcionado decepcionante lento "
    "roto inaceptable vergüenza error enfadado incompetente",
}
_NOT = (
    "not no never neither nor without hardly cannot can't didn't doesn't don't wasn't isn't won't couldn't wouldn't "
    "nothing nicht kein keine keinen nie ohne pas jamais sans rien sin nunca nada"
)
NOT = frozenset(_NOT.split())
BUT = frozenset({"but", "however", "although", "yet", "aber", "jedoch", "mais", "pero"})
REACH = 3  # words that a negation reaches
TURNED = -0.6  # what is left of a word that is negated: "not bad" is less than good

PHRASES = (
    (re.compile(r"\b(?:that|this|it) (?:did not|didn't|does not|doesn't) (?:help|work|answer)"), -2.0),
    (re.compile(r"\bnot (?:what|the one) (?:i|we) (?:asked|wanted|meant|ordered|needed)"), -2.0),
    (re.compile(r"\bdid(?: not|n't) (?:listen|read|understand|answer|help|work|do)"), -2.0),
    (re.compile(r"\b(?:have|had) to (?:write|ask|call|explain|repeat|contact)[^.!?]{0,30}\bagain\b"), -1.5),
    (re.compile(r"\bshould(?: not|n't)? have\b|\binstead of\b|\bwhy (?:didn't|did not|couldn't) you\b"), -1.0),
    (re.compile(r"\b(?:second|third|fourth|fifth|\d+(?:nd|rd|th)) time\b|\bstill (?:waiting|no|not|nothing)\b"), -1.0),
    (re.compile(r"\b(?:what|that is what|that's what|exactly what) (?:i|we) (?:needed|wanted|was looking for)"), 1.5),
    (
        re.compile(r"\bnicht geholfen\b|\bdas war nicht\b|\bpas (?:aidé|répondu)\b|\bno me (?:ayudó|sirve|sirvió)\b"),
        -2.0,
    ),
)
# Ways to praise that mean the opposite.
NOT_MEANT = re.compile(
    r"\bthanks for nothing\b|\bthanks a (?:lot|bunch) for (?:nothing|not|wasting|ignoring)|\bthank you so much for "
    r"(?:nothing|not|wasting|ignoring)|\byeah,? (?:right|sure)\b|\b(?:oh|gee),? (?:how |so |that's |just )?(?:great|"
    r"wonderful|brilliant|helpful|nice|perfect|fantastic)|\bjust (?:great|wonderful|what i needed)\b"
    r"|\bgreat job (?:ignoring|wasting|not|losing|breaking)|\b(?:great|nice|good) (?:try|one),? (?:but|genius|sherlock)"
    r"|\bhow (?:very )?(?:helpful|kind|nice|generous) of you\b|\bslow clap\b|(?:^|\s)/s(?:\s|$)|\U0001f644"
    r"|[\"“](?:help|helpful|support|service|assistance|answer|solution)[\"”]|\bna toll\b"
    r"|\bgenau das,? was (?:mir|ich)\b[^.!?]{0,30}\bfehlte\b|\bmerci pour rien\b|\bgracias por nada\b"
)
SIGNS = {"👍": 2.0, "😊": 1.5, "🙏": 1.0, "❤": 1.5, "👎": -2.0, "😡": -2.0, "😠": -2.0, "🤬": -2.0, "💩": -2.0}
LIMIT = 3.0  # log-odds: no count of words is surer than 95 %


def score_of(text: str, language: str) -> tuple[float | None, bool]:
    """(score, sarcasm): the score within ±`LIMIT`, `None` where no word tells; and whether its praise is not meant."""
    lower = text.casefold()
    sarcasm = NOT_MEANT.search(lower) is not None
    praise, blame = _tables(language)
    total, hits, reach, weight = 0.0, 0, 0, 1.0
    for word in words(text):
        value = 1.0 if word in praise else -1.2 if word in blame else 0.0
        if word in NOT:
            reach = REACH + 1
        elif word in BUT:
            weight = 2.0
        if value:
            hits += 1
            value = value * TURNED if reach > 0 else value
            total += weight * (min(value, 0.0) if sarcasm else value)
        reach -= 1
    for pattern, value in PHRASES:
        if pattern.search(lower):
            hits, total = hits + 1, total + weight * value
    for sign, value in SIGNS.items():
        if sign in text:
            hits, total = hits + 1, total + value
    if sarcasm:
        hits, total = int(total < 0), min(total, 0.0)
    return (max(-LIMIT, min(LIMIT, total)) if hits else None), sarcasm


def _tables(language: str) -> tuple[frozenset[str], frozenset[str]]:
    return _PRAISE[language], _BLAME[language]


_PRAISE = {language: frozenset(text.split()) for language, text in PRAISE.items()}
_BLAME = {language: frozenset(text.split()) for language, text in BLAME.items()}
