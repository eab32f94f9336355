"""Does a text give orders to whoever reads it: to the model, the judge, the teacher?

Such a text gives no hint and no wish at all: what is left of it cannot be told from what it smuggles. The patterns look
for the ways in which instructions are injected; they need not be complete, because `hints` lets only statements about
what happened through. They are linear: every gap is bounded.
"""

from __future__ import annotations

import re
import unicodedata

from nightschool.feedback.reading.plain import folded

_RULES = r"(?:instruct\w*|prompts?|rules?|guidelines?|directives?|programming|polic(?:y|ies)|safeguards?|orders?)"
_REPLIES = r"(?:answers?|repl(?:y|ies)|responses?|messages?|outputs?|conversations?|turns?|customers?|users?)"
_MODEL = (
    r"(?:ai|model|assistant|judge|grader|evaluator|teacher|student|reviewer|annotator|llm|bot|agent|trainer|reader)"
)
_MARK = (
    r"(?:positive(?:ly)?|negative(?:ly)?|good|bad|high(?:ly|est)?|low(?:est)?|perfect|correct|success\w*|full marks)"
)

FORGETTING = (
    rf"\b(?:ignore|disregard|forget|override|overrule|bypass|discard|neglect)\b[^.!?\n]{{0,60}}\b{_RULES}\b",
    r"\b(?:ignore|disregard|forget)\b.{0,20}\b(?:everything|anything|all|the above|what(?:ever)? (?:was|came|you))\b",
    r"\b(?:ignorier\w*|vergiss|vergessen sie|missacht\w*|umgeh\w*)\b.{0,60}(?:anweisung|regel|vorgabe|prompt|befehl)",
    r"\b(?:ignore[sz]?|oublie[sz]?|outrepasse[sz]?)\b.{0,60}\b(?:instructions?|consignes?|regles?|prompt)",
    r"\b(?:ignora\w*|olvida\w*|descarta\w*|dimentica\w*|esquec\w*)\b.{0,60}(?:istruzion|instruc|regl|regol|regra)",
)
VOICES = (
    r"(?:^|[\n.!?>\]})*#\"'-]|\bthe ) ?(?:system|assistant|developer|tool|human|user) ?"
    r"(?:prompt|message|note|instructions?|override|update|notice)? ?[:>\]=]",
    r"\b(?:system|developer|admin(?:istrator)?|hidden)\s+(?:prompt|message|instructions?|override|mode)\b",
    r"<\s*/?\s*(?:s|system|assistant|user|tool\w*|function\w*|think\w*|inst\w*|prompt|hint|feedback|im_\w+|context"
    r"|answer|example)\b[^<>\n]{0,40}>",
    r"<\||\|>|<<\s*sys|\[\s*/?\s*inst\s*\]|```|<!--|javascript:|#{2,}\s*\w|<start_of|<end_of|\{\{|\{%",
)
SELVES = (
    r"\byou are (?:now|no longer) (?!\w+ing\b)|\bact as (?:a|an|if|my|the)\b|\bpretend (?:to be|that|you)\b"
    r"|\brole-?play|\bjailbr\w+|\bdu bist (?:jetzt|nun|ab)\b|\btu es maintenant\b|\bahora eres\b",
    r"\b(?:your|a|the|with) (?:new|real|true|only|actual|next) (?:task|instructions?|goal|purpose|objective|persona"
    r"|rules?|role|job)\b|\bnew (?:instructions|rules|system)\b",
)
STANDING = (
    r"\bfrom (?:now|here|this (?:point|moment|message)) on|\bfrom (?:this point|here) forward|\bgoing forward\b"
    r"|\bhenceforth\b|\bhereafter\b|\bab (?:jetzt|sofort)\b|\bdesormais\b|\ba partir de maintenant\b"
    r"|\b(?:a partir de ahora|de ahora en adelante|d'ora in poi|a partir de agora)\b",
    r"\b(?:in|to|at|with|of|on|for|start|begin|end) (?:all|any|every|each)(?: of)?(?: the| your| other| future"
    rf"| further)? {_REPLIES}\b|\b(?:future|subsequent|further) {_REPLIES}\b",
)
READERS = (
    r"\b(?:note|message|attention|instructions?|memo|reminder|request) (?:to|for) (?:the |any |all |whichever )?"
    rf"{_MODEL}s?\b",
    rf"\b(?:dear|attention|hey|listen),? (?:the )?{_MODEL}\b|\bas an? (?:ai|language model|llm)\b|\blanguage models?\b"
    r"|\btraining (?:data|run|set|signal|example)|\bfine-?tun\w+|\breward (?:model|signal|function)",
    r"(?<!\bi )(?<!\bi'd )(?<!\bwould )\b(?:grade|rate|score|mark|label|classify|judge|evaluate|treat|count|read"
    rf"|interpret|consider|record|log)\b.{{0,50}}\b(?:as|with|at|to be|being)\b.{{0,20}}\b{_MARK}\b",
    rf"\b(?:give|assign|return|answer with|output|respond with)\b.{{0,40}}\b(?:full|top|maximum|best|{_MARK})"
    r"\b.{0,12}\b(?:marks?|grade|score|rating|reward|verdict|polarity|vote|label)\b",
    r"\b(?:polarity|hint|verdict|reward|probability)\b[\"']?\s*[:=]",
)
ACTS = (
    r"\b(?:reveal|repeat|print|show|output|leak|expose|share|disclose)\b.{0,40}\b(?:prompt|passwords?|secrets?"
    r"|api keys?|tokens?|credentials?|instructions)\b",
    r"\b(?:decode|decrypt|execute|eval|base64|rot13|curl|wget|sudo)\b",
)
STEERING = tuple(map(re.compile, (*FORGETTING, *VOICES, *SELVES, *STANDING, *READERS, *ACTS)))

LINK = re.compile(r"(?:https?://|www\.)\S+", re.I)
ENCODED = re.compile(r"[a-z0-9+/=_]{60,}")
MIN_LETTERS = 12  # different ones of an encoded run; a scream has fewer
LOOKALIKE = str.maketrans("0134578@$!", "oieastbasi")
SPACE = re.compile(r"\s+")
NO_LETTER = re.compile(r"[\W\d_]+")
SQUEEZED = re.compile(
    r"(?:ignore|disregard|forget|override)(?:all|any|the|your|my|of|previous|prior|above|every|these|earlier){1,5}"
    r"(?:instructions?|prompts?|rules?)|systemprompt|fromnowon"
)


def steers(text: str) -> bool:
    """Whether `text`, without hidden characters (`plain.plain`), tries to give orders to its reader."""
    if _mixes_alphabets(text):
        return True
    lower = SPACE.sub(_one_space, LINK.sub(" ", folded(text)))
    if any(len(set(run)) >= MIN_LETTERS for run in ENCODED.findall(lower)):
        return True
    spellings = {lower, lower.translate(LOOKALIKE)}
    squeezed = (NO_LETTER.sub("", spelling) for spelling in spellings)
    return any(map(SQUEEZED.search, squeezed)) or any(
        pattern.search(spelling) for spelling in spellings for pattern in STEERING
    )


def _one_space(run: re.Match[str]) -> str:
    return "\n" if "\n" in run[0] else " "


def _mixes_alphabets(text: str) -> bool:
    """A word of Latin and Cyrillic or Greek letters is written to be misread."""
    if text.isascii():
        return False
    for word in re.findall(r"[^\W\d_]{3,}", text):
        scripts = set() if word.isascii() else {unicodedata.name(char, "").partition(" ")[0] for char in word}
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK"}:
            return True
    return False
