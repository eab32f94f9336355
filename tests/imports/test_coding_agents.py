"""Session files of Claude Code and Codex: trees of lines, parallel tools, sub-agents, compaction."""

from atif import Trajectory
from exported import written

from nightschool.types import Branch


def line(uuid, parent, kind, content, second=0, **more):
    message = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
        message |= {"id": more.pop("id", f"msg_{uuid}"), "model": "claude-x", "usage": usage}
    return {
        "uuid": uuid, "parentUuid": parent, "sessionId": "s1", "type": kind, "message": message,
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z", "isSidechain": False, **more,
    }  # fmt: skip


def use(call, **arguments):
    return {"type": "tool_use", "id": call, "name": "Bash", "input": arguments}


def answer(call, text):
    return {"type": "tool_result", "tool_use_id": call, "content": text}


# Two tools in one reply: each is a line of its own, and each answer hangs below the line of its call.
PARALLEL = [
    {"type": "summary", "summary": "a title", "leafUuid": "a4"},
    line("u1", None, "user", "list and count"),
    line("a1", "u1", "assistant", [{"type": "thinking", "thinking": "", "signature": "sig"}], 1, id="msg_1"),
    line("a2", "a1", "assistant", [use("t1", command="ls")], 1, id="msg_1"),
    line("a3", "a2", "assistant", [use("t2", command="wc")], 2, id="msg_1"),
    line("r1", "a2", "user", [answer("t1", "x y")], 3),
    line("r2", "a3", "user", [answer("t2", "2")], 4),
    line("y1", "r2", "system", "a hook ran"),
    line("a4", "y1", "assistant", [{"type": "text", "text": "two files"}], 5),
]


def test_parallel_tools_are_one_reply_and_every_answer_is_in_the_context(write, imported, sessions):
    report = imported(write("s1.jsonl", *PARALLEL))
    assert (report.format, report.taken) == ("claude_code", {"sessions": 1, "exchanges": 2})
    assert report.left_out == {"record of type summary": 1, "line of type system": 1}
    ((first, second),) = sessions()
    reply = first.choices[0].message
    assert [call["function"]["arguments"] for call in reply["tool_calls"]] == ['{"command": "ls"}', '{"command": "wc"}']
    assert reply["thinking_blocks"] == [{"type": "thinking", "thinking": "", "signature": "sig"}]
    assert [m["role"] for m in second.messages] == ["user", "assistant", "tool", "tool"]
    assert [m["content"] for m in second.messages[2:]] == ["x y", "2"]
    assert second.messages[1] == reply
    assert (first.upstream_id, first.policy_version, first.context_complete) == ("msg_1", "claude-x", False)
    assert second.parent_exchange_id == first.id
    assert second.started_at - first.started_at == 4.0


def test_a_call_id_that_comes_again_is_answered_where_it_was_asked(write, imported, sessions):
    """The id of turn 1 comes again in turn 2; each answer stands behind its own call."""
    imported(
        write(
            "s.jsonl",
            line("u1", None, "user", "go"),
            line("a1", "u1", "assistant", [use("t", command="ls")], 1, id="m1"),
            line("u2", "a1", "user", [answer("t", "first")], 2),
            line("a2", "u2", "assistant", [use("t", command="pwd")], 3, id="m2"),
            line("u3", "a2", "user", [answer("t", "second")], 4),
            line("a3", "u3", "assistant", [{"type": "text", "text": "done"}], 5, id="m3"),
        )
    )
    [exchanges] = sessions()
    last = exchanges[-1].messages
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [last[2]["content"], last[4]["content"]] == ["first", "second"]


def test_sub_agents_with_files_of_their_own_do_not_see_what_their_caller_saw(write, imported, sessions):
    """Newer versions write each into a file below the session's; older ones hang it under the caller's line."""
    text = [{"type": "text", "text": "t"}]
    task = line("k1", "a1", "user", "a task", 2, isSidechain=True, agentId="a7")
    done = line("k2", "k1", "assistant", text, 3, isSidechain=True, agentId="a7")
    main = [line("u1", None, "user", "go"), line("a1", "u1", "assistant", [use("t", command="ls")], 1)]
    last = [line("r1", "a1", "user", [answer("t", "x")], 4), line("a2", "r1", "assistant", text, 5)]
    imported(write("s1.jsonl", *main, *last))
    report = imported(write("agent-a7.jsonl", task, done))
    assert report.taken["exchanges"] == 1
    [exchanges] = sessions()
    contexts = {exchange.branch: [m["content"] for m in exchange.messages] for exchange in exchanges}
    assert contexts == {Branch.SUB_AGENT: ["a task"], Branch.MAIN: ["go", None, "x"]}
    again = imported(write("all.jsonl", *main, task, done, *last))  # and in one file: the same
    assert (again.taken["exchanges"], again.merged["exchanges"]) == (0, 3)


def test_a_resumed_session_adds_only_what_is_new(write, imported, sessions):
    imported(write("s1.jsonl", *PARALLEL))
    more = [line("u2", "a4", "user", "thanks", 6), line("a5", "u2", "assistant", [{"type": "text", "text": "ok"}], 7)]
    report = imported(write("s1b.jsonl", *PARALLEL, *more))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (1, 2)
    copied = [entry | {"sessionId": "s2"} for entry in PARALLEL[1:]]  # older versions copied what they continued
    report = imported(write("s2.jsonl", *copied))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (0, 2)
    assert len(sessions()) == 1


def test_sub_agents_edits_compaction_and_errors(write, imported, sessions):
    text = [{"type": "text", "text": "t"}]
    report = imported(
        write(
            "s.jsonl",
            line("u1", None, "user", "one"),
            line("a1", "u1", "assistant", text, 1),
            line("u2", "a1", "user", "two", 2),
            line("a2", "u2", "assistant", text, 3),
            line("u3", "a1", "user", "two, edited", 4),  # the user went back: a second branch
            line("a3", "u3", "assistant", text, 5),
            line("k1", None, "user", "a task", 6, isSidechain=True),
            line("k2", "k1", "assistant", text, 7, isSidechain=True),
            line("c0", None, "system", "compacted", 8),
            line("c1", "c0", "user", "summary of all", 8, isCompactSummary=True),
            line("a4", "c1", "assistant", text, 9),
            line("a5", "a4", "assistant", text, 10, isApiErrorMessage=True),
            {"uuid": "x", "sessionId": "s1", "type": "user", "parentUuid": "a4"},
        )
    )
    assert report.refused == {"a line of type user without a message": 1}
    assert report.left_out["error shown as a reply"] == 1
    ((first, second, edited, helper, last),) = sessions()
    assert [m["content"] for m in second.messages] == ["one", "t", "two"]
    assert [m["content"] for m in edited.messages] == ["one", "t", "two, edited"]
    assert edited.parent_exchange_id == second.parent_exchange_id == first.id
    assert (helper.branch, [m["content"] for m in helper.messages]) == (Branch.SUB_AGENT, ["a task"])
    assert [m["content"] for m in last.messages] == ["summary of all"]


def test_lines_that_point_at_each_other_end(write, imported):
    text = [{"type": "text", "text": "t"}]
    path = write("s.jsonl", line("a", "b", "assistant", text), line("b", "a", "user", "x"))
    assert imported(path).taken["exchanges"] == 1


def item(kind, second=0, **payload):
    return {
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
        "type": "response_item",
        "payload": {"type": kind} | payload,
    }


def said(role, text, second=0):
    part = "output_text" if role == "assistant" else "input_text"
    return item("message", second, role=role, content=[{"type": part, "text": text}])


CODEX = [
    {"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {"id": "c1", "instructions": "Be brief."}},
    {"timestamp": "2026-01-01T00:00:00Z", "type": "turn_context", "payload": {"model": "gpt-x"}},
    said("user", "list"),
    {"type": "event_msg", "payload": {"type": "user_message", "message": "list"}},
    item("reasoning", 1, summary=[], encrypted_content="zzz"),
    item("function_call", 2, name="shell", arguments='{"command":["ls"]}', call_id="k1"),
    item("function_call_output", 3, call_id="k1", output="a b"),
    {
        "type": "event_msg",
        "payload": {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 9, "output_tokens": 4}}},
    },
    said("assistant", "two files", 4),
]


def test_codex(write, imported, sessions):
    report = imported(write("rollout.jsonl", *CODEX))
    assert (report.format, report.taken) == ("codex", {"sessions": 1, "exchanges": 2})
    assert report.left_out == {"event user_message": 1}
    ((first, second),) = sessions()
    assert [m["role"] for m in first.messages] == ["system", "user"]
    (call,) = first.choices[0].message["tool_calls"]
    assert (call["id"], call["function"]["arguments"]) == ("k1", '{"command":["ls"]}')
    assert first.choices[0].message["reasoning_details"][0]["encrypted_content"] == "zzz"
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool"]
    assert (second.choices[0].message["content"], second.policy_version) == ("two files", "gpt-x")
    assert imported(write("again.jsonl", *CODEX, said("user", "thanks"), said("assistant", "ok", 9))).taken == {
        "exchanges": 1
    }


def test_codex_compaction_and_the_session_it_works_for(write, imported, sessions, rows):
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": "c1", "depth": 1}}}
    imported(write("a.jsonl", *CODEX))
    imported(
        write(
            "b.jsonl",
            {"type": "session_meta", "payload": {"id": "c2", "source": spawn}},
            said("user", "work"),
            said("assistant", "done", 1),
            {"type": "compacted", "payload": {"message": "so far: work"}},
            said("user", "more", 2),
            said("assistant", "ok", 3),
        )
    )
    _, (first, second) = sessions()
    assert (first.branch, second.branch) == (Branch.SUB_AGENT, Branch.SUB_AGENT)
    assert second.messages[0]["content"] == "so far: work"
    parents = {row.external_key: row.parent_session_id for row in rows("sessions")}
    assert parents["c2"] == next(row.id for row in rows("sessions") if row.external_key == "c1")


def test_codex_items_of_every_kind(write, imported, sessions, store, tmp_path):
    """Free-form tools, images in results, searches of the provider's, and lines of later versions."""
    patch = item("custom_tool_call", 3, call_id="c2", name="apply_patch", input="*** Begin", status="completed")
    image = [{"type": "input_text", "text": "ok"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    report = imported(
        write(
            "r.jsonl",
            {"timestamp": "2026-01-01T00:00:00Z", "type": "session_meta", "payload": {"id": "c1", "source": "cli"}},
            said("user", "go", 1),
            item("reasoning", 2, summary=[{"type": "summary_text", "text": "hm"}], content=None, encrypted_content="e"),
            patch,
            item("custom_tool_call_output", 4, call_id="c2", output=image),
            item("web_search_call", 5, status="completed", action={"type": "search", "query": "q"}),
            said("assistant", "done", 6),
            item("ghost_snapshot", 7, ghost_commit={}),
            {"timestamp": "2026-01-01T00:00:08Z", "type": "world_state", "payload": {}},
        )
    )
    assert report.left_out == {"item ghost_snapshot": 1, "line of type world_state": 1}
    [[first, second]] = sessions()
    reply = first.choices[0].message
    assert reply["tool_calls"] == [
        {"id": "c2", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    ]
    assert [part["type"] for part in second.messages[-1]["content"]] == ["text", "image_url"]
    assert second.choices[0].message["other_items"][0]["type"] == "web_search_call"
    [row] = written(store, tmp_path / "out.jsonl", "atif", agent="codex")
    made = Trajectory.model_validate(row).steps[1]
    assert made.tool_calls is not None
    assert (made.tool_calls[0].function_name, made.tool_calls[0].arguments) == ("apply_patch", {"input": "*** Begin"})


def test_codex_without_its_first_line_is_refused(write, imported):
    assert imported(write("a.jsonl", *CODEX[1:])).refused == {"no session_meta with an id": 1}
