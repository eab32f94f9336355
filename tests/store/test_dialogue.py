import pytest

from nightschool.store.dialogue import carries_summary, read_dialogue, side_task
from nightschool.store.tree import grow
from nightschool.types import Branch, Json


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def dialogue(messages: list[Json], tools: list[Json] | None = None):
    return read_dialogue(grow("t", messages), messages, tools or [])


TALK = [user("where is my parcel?"), assistant("On its way."), user("thanks")]

TITLES = [
    [user("### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n" + "-" * 200)],
    [system("You are a title generator. You output ONLY a thread title."), user("fix the login")],
    [
        system(
            "Analyze if this message indicates a new conversation topic. If it does, extract a 2-3 word title that "
            "captures the new topic."
        ),
        user("fix the login"),
        assistant("{"),
    ],
    [user("### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history\n" + "-" * 200)],
]
SUMMARIES = [
    [*TALK, user("Create a detailed summary of the conversation so far, with all that is needed to go on. " * 3)],
    [*TALK, user("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff for another model. " * 3)],
    [*TALK, user("Provide a detailed prompt for continuing our conversation above. Say what we did, " * 3)],
    [system("You summarize chat history into one snapshot, from which the agent will resume its work."), *TALK],
]
NEITHER = [
    TALK,
    [user("Suggest a title for our chat group, please")],
    [user("Summarize our conversation so far")],
    [system("You are a bookstore's chat assistant. Suggest titles the customer would like."), user("hello")],
    [user("Write an essay on Rome, its history and its people, and give it a good title. " * 4)],
    [system("You are a shop's agent. Keep the conversation short."), user("hello")],
]


@pytest.mark.parametrize("messages", TITLES)
def test_titles(messages):
    assert side_task(messages, []) == Branch.TITLE


@pytest.mark.parametrize("messages", SUMMARIES)
def test_summaries(messages):
    assert side_task(messages, []) == Branch.COMPACTION


@pytest.mark.parametrize("messages", [*NEITHER, [], [system("alone")], [{"content": None}]])
def test_neither(messages):
    assert side_task(messages, []) is None


def test_with_tools_only_the_last_message_can_ask():
    assert side_task(TITLES[0], [tool("search")]) is None
    assert side_task(SUMMARIES[3], [tool("search")]) is None
    assert side_task(SUMMARIES[0], [tool("search")]) == Branch.COMPACTION


def test_the_dialogue_is_hashed_without_its_system_message():
    plain, told, dated = dialogue(TALK), dialogue([system("x"), *TALK]), dialogue([system("x, May 12"), *TALK])
    assert plain.end == told.end == dated.end
    assert len({plain.system_hash, told.system_hash, dated.system_hash}) == 3
    # a system message inside the dialogue is part of it
    assert dialogue([*TALK, system("x")]).end != plain.end


def test_replies_are_found_under_the_hash_of_the_history_that_brings_them_back():
    asked = TALK[:1]
    reply = grow("t", [assistant("On its way.")], grow("t", asked)[-1])[0]
    assert dialogue(asked).reply_hash(reply) == dialogue(TALK).replies[0]
    longer = [*TALK, assistant("Bye."), user("?")]
    assert dialogue(longer).replies[1] == dialogue(TALK).replies[0]  # latest first


def test_an_opening_names_the_agent_not_the_day():
    long = "You are the agent of a shop that sells garden tools to people in town."
    assert dialogue([system(f"{long} May 12"), *TALK]).opening == dialogue([system(f"{long} May 13"), *TALK]).opening
    assert dialogue([system("You review code."), *TALK]).opening != dialogue([system("You write code."), *TALK]).opening
    # without a system message its tools tell
    assert dialogue(TALK, [tool("a"), tool("b")]).opening == dialogue(TALK, [tool("b"), tool("a")]).opening
    assert dialogue(TALK, [tool("a")]).opening != dialogue(TALK, [tool("b")]).opening


def test_a_summary_is_known_again_by_its_longest_line():
    summary = assistant("Summary\nThe parcel left on May 12 and is late.\nBye")
    assert carries_summary([user("We go on.\n- The parcel left on May 12 and is late.")], summary)
    assert not carries_summary([user("Summary Bye")], summary)
    assert not carries_summary([user("ok")], assistant("ok"))  # too short to mean anything
