"""What became of a file: taken, merged, refused and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nightschool.types import Json

NUM_PLACES = 5  # shown for each reason


@dataclass(slots=True)
class Report:
    """Counts of one file, or of several together.

    `taken` and `merged` count sessions, exchanges and feedback; merged is what the store had already. `refused`
    is what is lost, by reason, with the first places; `left_out` what is no part of a conversation.
    """

    file: str
    format: str = ""
    records: int = 0
    conversations: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    merged: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def refuse(self, reason: str, place: str) -> None:
        self.refused[reason] += 1
        found = self.places.setdefault(reason, [])
        if len(found) < NUM_PLACES:
            found.append(place)

    @property
    def lost_share(self) -> float:
        """Of everything that was to be taken, what was not. In 0 to 1."""
        lost = self.refused.total()
        return lost / max(1, lost + self.conversations)

    def as_json(self) -> Json:
        return {
            "file": self.file,
            "format": self.format,
            "records": self.records,
            "conversations": self.conversations,
            "taken": dict(self.taken),
            "merged": dict(self.merged),
            "parked_feedback": self.parked,
            "refused": {
                reason: {"count": count, "places": self.places[reason]} for reason, count in self.refused.most_common()
            },
            "left_out": dict(self.left_out.most_common()),
            "lost_share": self.lost_share,
            "notes": list(dict.fromkeys(self.notes)),
        }


def together(reports: list[Report]) -> Report:
    """One report of all files."""
    total = Report(file=", ".join(report.file for report in reports))
    total.format = ", ".join(dict.fromkeys(report.format for report in reports))
    for report in reports:
        total.records += report.records
        total.conversations += report.conversations
        total.taken += report.taken
        total.merged += report.merged
        total.parked += report.parked
        total.left_out += report.left_out
        total.notes += report.notes
        for reason, count in report.refused.items():
            total.refused[reason] += count
            total.places[reason] = (total.places.get(reason, []) + report.places[reason])[:NUM_PLACES]
    return total
