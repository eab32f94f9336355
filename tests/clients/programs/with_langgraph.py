"""A shop's clerk on langgraph and langchain-openai, as their documentation shows it: the only change is the base_url.

Run: python with_langgraph.py BASE_URL plain|streamed; prints the final answer.
"""

import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def track(order: str) -> str:
    """Where an order is."""
    assert order == "7", order
    return "on its way"


def main(base_url: str, way: str) -> None:
    model = ChatOpenAI(
        model="clerk", base_url=base_url, api_key="any", temperature=0, max_tokens=60, streaming=way == "streamed"
    ).bind_tools([track])

    def answer(state: MessagesState) -> dict:
        return {"messages": [model.invoke([SystemMessage("You answer for the shop."), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode([track]))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    state = graph.compile().invoke({"messages": [HumanMessage("Where is order 7?")]})
    print(state["messages"][-1].content)


main(*sys.argv[1:])
