"""Words and turns of phrase that signals look for, in English, German, French and Spanish; and which language a text is
in. Fixed lists: a text in another language says nothing here, and signals of words are then unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
FEW_WORDS = 4  # below, a text's language is not told


def phrases(*patterns: str) -> re.Pattern[str]:
    """Any of these as whole words, whatever the case."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", re.IGNORECASE)


THANKS = phrases(
    r"thank you", r"thanks?", r"thx", r"much appreciated", r"appreciate (?:it|your|the|that)", r"danke\w*", r"merci",
    r"gracias",
)  # fmt: skip
COMPLAINT = phrases(
    r"disappoint\w*", r"frustrat\w*", r"annoy\w*", r"unaccept\w*", r"ridiculous\w*", r"useless", r"terribl[ey]",
    r"horribl[ey]", r"awful", r"bad(?:ly)?", r"worse", r"worst", r"wrong", r"incorrect\w*", r"mistak\w+", r"upset\w*",
    r"angry", r"unhappy", r"unfair", r"unfortunate\w*", r"confus\w+",
    r"(?:not|\w+n['’]t) (?:happy|satisfied|pleased)",
    r"(?:do|does|did|is|are|was)(?: not|n['’]t) (?:work\w*|help\w*)", r"not working", r"still (?:not|no|nothing)",
    r"waste", r"fed up", r"complain\w*", r"enttäusch\w*", r"ärger\w*", r"falsch\w*", r"schlecht\w*", r"unbrauchbar",
    r"funktioniert nicht", r"immer noch nicht", r"déçu\w*", r"inutile", r"inacceptable", r"mauvais\w*", r"faux",
    r"ne (?:marche|fonctionne) pas", r"toujours pas", r"decepcion\w*", r"inútil", r"inaceptable", r"mal[oa]?",
    r"incorrect[oa]", r"no funciona", r"sigue sin",
)  # fmt: skip
NEGATION = phrases(
    r"no(?:t|ne|body|thing|where)?", r"never", r"without", r"cannot", r"\w+n['’]t", r"neither", r"nor", r"nein",
    r"nicht", r"kein\w*", r"nie", r"nichts", r"non", r"pas", r"jamais", r"rien", r"aucun\w*", r"nunca", r"nada",
    r"ning[uú]n\w*",
)  # fmt: skip
CORRECTION = phrases(
    r"no[,.!]", r"nope", r"actually", r"(?:that|this|it)(?:['’]s| is| was)(?: not|n['’]t)", r"not what",
    r"i (?:said|meant|told you|asked)", r"i(?: did|['’]d)(?: not|n['’]t)", r"rather than", r"instead(?: of)?",
    r"you (?:forgot|missed|misunderstood|got)", r"should(?: have|['’]ve| be)", r"nein", r"sondern", r"stattdessen",
    r"ich (?:meinte|sagte)", r"nicht das", r"non[,.!]", r"plutôt", r"je voulais dire", r"j['’]ai dit", r"en vez de",
    r"quise decir", r"dije", r"en realidad",
)  # fmt: skip
CLARIFICATION = phrases(
    r"what do you mean", r"what does (?:that|this|it) mean", r"(?:do|did)(?: not|n['’]t) understand",
    r"(?:not|\w+n['’]t) clear", r"unclear", r"clarif\w+", r"explain", r"can you (?:repeat|rephrase)",
    r"was (?:meinst du|meinen sie)", r"verstehe (?:ich )?nicht", r"was heißt das", r"que voulez-vous dire",
    r"je ne comprends pas", r"qué quieres? decir", r"no entiendo",
)  # fmt: skip
PUSHBACK = phrases(
    r"are you sure", r"(?:make|an?|any) exceptions?", r"(?:any|an)other (?:way|option)",
    r"(?:is|are) there (?:any|no) (?:way|other|chance)",
    r"why (?:not|can['’]?t|can ?not|is(?:n['’]t)?|do(?:n['’]t)?)",
    r"can['’]t you", r"but i", r"i (?:really|still) (?:need|want|think|believe)",
    r"(?:check|try|look) (?:it |that )?again", r"double[- ]check", r"sind sie sicher", r"bist du sicher", r"aber ich",
    r"ausnahme", r"vous êtes sûr\w*", r"mais je", r"est[áa]s? segur[oa]", r"pero yo", r"excepción",
)  # fmt: skip
PERSON = phrases(
    r"(?:human|real|live) (?:agent|person|being|representative|operator|support)",
    r"(?:speak|talk|chat) (?:to|with) (?:an? |your |some ?)"
    r"(?:human|person|manager|supervisor|representative|agent|one)",
    r"supervisor", r"manager", r"mit einem (?:menschen|mitarbeiter)", r"un (?:humain|conseiller)", r"una persona",
    r"un humano",
)  # fmt: skip
REFUSAL = phrases(
    r"i(?:['’]m| am) (?:sorry|afraid)[^.!?]{0,40}?(?:can(?:not|['’]t)|unable|not able|not possible|not allowed)",
    r"i can(?:not|['’]t| not)", r"i(?: am|['’]m) (?:unable|not able) to", r"i won['’]t",
    r"(?:is|are)(?: not|n['’]t) (?:possible|allowed|permitted|eligible|able)", r"not possible",
    r"ich kann (?:leider )?nicht", r"je ne peux (?:malheureusement )?pas", r"no puedo",
)  # fmt: skip
APOLOGY = phrases(
    r"apologi[sz]e\w*", r"apolog(?:y|ies)", r"i(?:['’]m| am) sorry", r"sorry (?:for|about|that)", r"my mistake",
    r"entschuldig\w*", r"tut mir leid", r"désolée?", r"excusez", r"disculp\w*", r"perdón", r"lo siento",
)  # fmt: skip
HANDOFF = phrases(
    r"(?:transfer|connect|escalat|forward|hand)\w*[^.!?]{0,60}?"
    r"(?:human|person|representative|specialist|supervisor|operator|live agent|support team)",
    r"(?:human|live) agent will",
)
HANDOFF_TOOL = re.compile(
    r"escalat|(?:transfer|hand_?(?:off|over)|connect|forward)"
    r".*(?:human|person|operator|representative|supervisor|live)",
    re.IGNORECASE,
)

COMMON = {
    "en": "the and you is are to of for that this have with my can not it in on please what would i",
    "de": "der die das und ich ist nicht ein eine zu mit auf für sie wir mein bitte den was kann ihr haben es",
    "fr": "le la les et je est pas un une de que pour vous nous mon dans ce avec sur ne du des il",
    "es": "el los y es no un una de que para usted mi por con en lo se está quiero como pero me las",
    "it": "il che non di una per mi con sono del alla gli anche questo è ho come della",
    "pt": "o os e não um uma de que para você meu com em por está como mas isso eu do da",
    "nl": "de het een en is niet van ik dat op voor met zijn mijn je heb wat maar er",
}
COMMON_WORDS = {name: frozenset(words.split()) for name, words in COMMON.items()}
EVERYWHERE = frozenset().union(*COMMON_WORDS.values())
SCRIPTS = {
    "Latin": r"A-Za-z\u00c0-\u024f",
    "Cyrillic": r"\u0400-\u04ff",
    "Greek": r"\u0370-\u03ff",
    "Arabic": r"\u0600-\u06ff",
    "Hebrew": r"\u0590-\u05ff",
    "Devanagari": r"\u0900-\u097f",
    "Thai": r"\u0e00-\u0e7f",
    "Japanese": r"\u3040-\u30ff",
    "Han": r"\u4e00-\u9fff",
    "Hangul": r"\uac00-\ud7af",
}
LETTERS = {name: re.compile(f"[{letters}]") for name, letters in SCRIPTS.items()}


def language_of(text: str) -> str | None:
    """The script of a text, for Latin the language whose common words it has most of; `None` where none is clear."""
    counts = {name: len(letters.findall(text)) for name, letters in LETTERS.items()}
    script = max(counts, key=lambda name: counts[name])
    if not counts[script]:
        return None
    if script in ("Japanese", "Han"):
        return "Japanese" if counts["Japanese"] else "Han"
    if script != "Latin":
        return script
    words = [word.lower() for word in WORD.findall(text)]
    if len(words) < FEW_WORDS:
        return None
    counted = [(sum(word in common for word in words), name) for name, common in COMMON_WORDS.items()]
    hits = sorted(counted, reverse=True)
    return hits[0][1] if hits[0][0] >= 2 and hits[0][0] > hits[1][0] else None


def is_read(text: str) -> bool:
    """Whether the lists can say anything of a text: it is not in a script or a language that they do not have."""
    return language_of(text) in (None, "en", "de", "fr", "es")


def matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Where the phrases stand."""
    return (found.span() for found in pattern.finditer(text))


def content_words(text: str) -> frozenset[str]:
    """The words of a text that are not the commonest of a language."""
    return frozenset(word.lower() for word in WORD.findall(text)) - EVERYWHERE


def likeness(one: frozenset[str], other: frozenset[str]) -> float:
    """Dice coefficient of two sets of words."""
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0
