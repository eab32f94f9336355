"""What messages and replies often say: with it before their eyes short texts become shorter.

Both are part of the format of what is stored. They never change; another text gets another code.
"""

# Before the content of a `Packed` column. The likelier the later.
MESSAGES = (
    b'{"type":"object","properties":{"type":"string","description":"},"required":[]}}{"role":"tool","tool_call'
    b'_id":"call_","name":"","content":"{\\"id\\": \\"\\", \\"name\\": \\"\\", \\"status\\": \\"\\", \\"date\\": \\"2'
    b'0\\", \\"price\\": , \\"type\\": \\"\\", \\"email\\": \\"@example.com\\", \\"address\\": {\\"city\\": \\"\\", '
    b'\\"country\\": \\"\\"}}]"{"role":"assistant","content":null,"tool_calls":[{"id":"call_","type":"function","f'
    b'unction":{"name":"get_","arguments":"{\\"\\":\\"\\"}"}}]}{"role":"assistant","content":" I can help you with'
    b" that. Could you please provide Please let me know if you would like to Thank you for your would like to"
    b' proceed with the following: \\n\\n1. ** Is there anything else I can help you with today?"}{"content":nul'
    b'l,"role":"assistant","tool_calls":[{"function":{"arguments":"{\\"","name":"get_"},"id":"call_","type":"fu'
    b'nction"}]}{"content":" ","role":"assistant"}{"role":"user","content":"Yes, please. Thank you for your he'
    b'lp. I don\'t have that. I want to "}{"content":"Hi! I\'d like to , please","role":"user"}'
)

# Before the message of a reply, for the body that brought it.
REPLIES = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
    b'""}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n"usage":{"input_tokens":,"output_tokens":,'
    b'"stop_reason":"end_turn","stop_sequence":null,"id":"msg_","type":"message","role":"assistant","content":[{"type":'
    b'"text","text":""}],"id":"resp_","object":"response","status":"completed","output":[{"type":"output_text",'
    b'data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":17,"model":"","system_fingerprint":"fp_",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    b'data: [DONE]\n\n"tool_calls":[{"id":"call_","type":"function","function":{"name":"","arguments":"{\\"\\"}"}}],'
    b'"refusal":null,"annotations":[],"finish_reason":"tool_calls","usage":{"prompt_tokens":,"completion_tokens":,'
    b'"total_tokens":,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":'
    b'{"reasoning_tokens":0}},"service_tier":"default"}{"id": "chatcmpl-", "object": "chat.completion", "created": 17, '
    b'"model": "", "choices": [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}'
    b'{"id":"chatcmpl-","object":"chat.completion","created":17,"model":"","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":"stop"}]}'
)
