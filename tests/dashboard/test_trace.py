"""The tree of a session: forks, retries, re-serialized replies, side requests."""

from nightschool.dashboard.trace import Leaf, MessageRow, Tree


def row(name: str, parent: str | None, depth: int, match: str = "", role: str = "user") -> MessageRow:
    return MessageRow(name, parent, match or name, role, depth)


# system - user - a (a reply) - thanks, and a retry b beside a; a side request of its own
ROWS = [
    row("system", None, 0),
    row("user", "system", 1),
    row("a", "user", 2),
    row("b", "user", 2),
    row("thanks", "a", 3),
    row("end", "thanks", 4),
    row("title", None, 0),
    row("named", "title", 1),
]
LEAVES = [
    Leaf("b", "x1", 0, 10.0),
    Leaf("a", "x2", 0, 11.0),
    Leaf("named", "x3", 0, 12.0),
    Leaf("end", "x4", 0, 13.0),
]


def test_the_main_branch_is_the_deepest_and_side_branches_hang_under_their_fork() -> None:
    tree = Tree(ROWS, LEAVES)
    assert tree.main_end() == "end"
    drawn = [(line.node.key, line.level) for line in tree.lines()]
    assert drawn == [
        ("system", 0),
        ("user", 0),
        ("b", 1),
        ("a", 0),
        ("thanks", 0),
        ("end", 0),
        ("title", 0),
        ("named", 0),
    ]
    assert tree.ends() == ["end", "b", "named"]


def test_a_branch_through_an_exchange_goes_on_to_its_end() -> None:
    tree = Tree(ROWS, LEAVES)
    assert tree.end_through("x2") == "end"
    assert tree.end_through("x1") == "b"
    assert [node.key for node in tree.branch("b")] == ["system", "user", "b"]
    assert tree.end_through("nobody") is None


def test_a_reply_that_comes_back_spelled_differently_is_one_node() -> None:
    # "a" was sampled, "a-again" is how the client sent it back; their rolled match hash is the same
    rows = [*ROWS[:3], row("a-again", "user", 2, match="a"), row("more", "a-again", 3)]
    tree = Tree(rows, [Leaf("a", "x2", 0, 11.0), Leaf("more", "x5", None, 12.0)])
    assert [line.node.key for line in tree.lines()] == ["system", "user", "a", "more"]
    assert tree.nodes["a"].replies == [("x2", 0)]
    assert tree.nodes["more"].unanswered == ["x5"]
    assert tree.end_through("x5") == "more"


def test_identical_retries_are_one_node_with_two_exchanges() -> None:
    tree = Tree(ROWS[:3], [Leaf("a", "x1", 0, 1.0), Leaf("a", "x2", 0, 2.0)])
    assert tree.nodes["a"].exchanges() == ["x1", "x2"]


def test_five_thousand_turns_are_drawn_without_recursion() -> None:
    rows = [row(f"m{n}", f"m{n - 1}" if n else None, n) for n in range(10_000)]
    tree = Tree(rows, [Leaf(f"m{n}", f"x{n}", 0, float(n)) for n in range(1, 10_000, 2)])
    assert len(tree.lines()) == 10_000
    assert tree.end_through("x1") == "m9999"


def test_a_session_without_messages_has_no_branch() -> None:
    tree = Tree([], [Leaf("gone", "x1", 0, 1.0)])
    assert tree.main_end() is None
    assert tree.lines() == tree.ends() == []
