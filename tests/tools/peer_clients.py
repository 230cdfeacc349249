#!/usr/bin/env python3
"""Drives `strata serve` with the official `openai` and `anthropic` packages.

    python tests/tools/peer_clients.py target/release/strata

Needs `pip install openai anthropic`; says so and ends with 77 (skipped) where they are missing.
"""

import base64
import json
import math
import sys

from serving import FIXTURES, PICTURES, SEEING, serving

try:
    import anthropic
    import openai
except ImportError as error:
    print(f"skipped: {error}; pip install openai anthropic")
    sys.exit(77)

EMBEDDER = FIXTURES / "families" / "qwen3-embed-last.gguf"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]
SCHEMA = {
    "type": "object",
    "required": ["city", "days"],
    "additionalProperties": False,
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def expect(error, call):
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"{error.__name__} was expected")


@check
def openai_chat(client, _):
    reply = client.chat.completions.create(model="x", messages=FRANCE, temperature=0)
    assert "Paris" in reply.choices[0].message.content
    stream = client.chat.completions.create(
        model="x", messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == reply.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens


@check
def openai_stream_helper_with_tools(client, _):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]
    with client.chat.completions.stream(
        model="x", messages=FRANCE, tools=tools, tool_choice="required", parallel_tool_calls=False
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert len(done) == 1
    call = final.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    history = FRANCE + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    client.chat.completions.create(model="x", messages=history, tools=tools, max_tokens=5)


@check
def openai_structured_output(client, _):
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    reply = client.chat.completions.create(model="x", messages=FRANCE, response_format=form)
    assert 1 <= json.loads(reply.choices[0].message.content)["days"] <= 9


@check
def openai_reasoning_and_logprobs(client, _):
    reply = client.chat.completions.create(
        model="x", messages=[{"role": "user", "content": "What is 17 + 25?"}], reasoning_effort="high", max_tokens=200,
        logprobs=True, top_logprobs=2,
    )
    assert reply.choices[0].message.reasoning_content
    assert all(len(entry.top_logprobs) == 2 for entry in reply.choices[0].logprobs.content)


@check
def openai_completions_models_errors(client, _):
    assert client.completions.create(model="x", prompt="The capital of France is", max_tokens=3).choices[0].text
    assert client.models.list().data[0].id
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model="x", messages=[]))
    assert error.param == "messages"
    expect(openai.BadRequestError, lambda: client.embeddings.create(model="x", input="x"))
    expect(openai.NotFoundError, lambda: client.models.retrieve("nothing"))


@check
def openai_responses(client, _):
    reply = client.responses.create(model="x", input="What is the capital of France?", instructions="Answer briefly.")
    assert "Paris" in reply.output_text and reply.status == "completed"
    with client.responses.stream(model="x", input="What is the capital of France?") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "Paris" in final.output_text
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
    reply = client.responses.create(model="x", input="Weather?", tools=tools, tool_choice="required", parallel_tool_calls=False)
    call = reply.output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["days"] >= 1
    more = [{"role": "user", "content": "Weather?"}, call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    client.responses.create(model="x", input=more, tools=tools, max_output_tokens=5)


@check
def anthropic_messages(_, client):
    reply = client.messages.create(model="x", max_tokens=40, messages=FRANCE, system="Answer briefly.")
    assert "Paris" in reply.content[0].text and reply.stop_reason == "end_turn"
    with client.messages.stream(model="x", max_tokens=40, messages=FRANCE, system="Answer briefly.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == reply.content[0].text == final.content[0].text
    assert final.usage.output_tokens == reply.usage.output_tokens
    assert client.messages.count_tokens(model="x", messages=FRANCE).input_tokens > 5


@check
def anthropic_tools_and_thinking(_, client):
    tools = [{"name": "weather", "description": "d", "input_schema": SCHEMA}]
    with client.messages.stream(
        model="x", max_tokens=100, messages=FRANCE, tools=tools, tool_choice={"type": "tool", "name": "weather"}
    ) as stream:
        final = stream.get_final_message()
    call = final.content[0]
    assert call.type == "tool_use" and call.input["city"] in ("Paris", "Oslo") and final.stop_reason == "tool_use"
    history = FRANCE + [
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
    ]
    client.messages.create(model="x", max_tokens=5, messages=history, tools=tools)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    reply = client.messages.create(model="x", max_tokens=1500, messages=question, thinking=thinking)
    assert [block.type for block in reply.content] == ["thinking", "text"]


@check
def anthropic_beta_and_errors(_, client):
    client.beta.messages.create(model="x", max_tokens=2, messages=FRANCE, betas=["tools-2024-04-04"])
    error = expect(anthropic.BadRequestError, lambda: client.messages.create(model="x", max_tokens=2, messages=[]))
    assert "messages" in error.message


@check
def leaving_a_stream_frees_the_server(client, other):
    stream = client.chat.completions.create(model="x", messages=STORY, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    with other.messages.stream(model="x", max_tokens=500, messages=STORY) as stream:
        next(iter(stream))
    assert "Paris" in client.chat.completions.create(model="x", messages=FRANCE, temperature=0).choices[0].message.content


def openai_embeddings(client):
    # The package asks for base64 unless told otherwise, and hands out numbers.
    packed = client.embeddings.create(model="x", input=["one text", "ab"])
    plain = client.embeddings.create(model="x", input="ab", encoding_format="float")
    assert [entry.index for entry in packed.data] == [0, 1] and packed.usage.prompt_tokens > 5
    assert all(abs(a - b) < 1e-6 for a, b in zip(packed.data[1].embedding, plain.data[0].embedding, strict=True))
    short = client.embeddings.create(model="x", input="ab", dimensions=8).data[0].embedding
    assert len(short) == 8 and abs(math.hypot(*short) - 1) < 1e-5
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model="x", messages=FRANCE))
    assert "/v1/embeddings" in error.message


def pictures(client, other):
    """Pictures in base64, as both packages send them."""
    data = base64.b64encode((PICTURES / "photo.jpg").read_bytes()).decode()
    question = {"type": "text", "text": "What is this?"}
    address = f"data:image/jpeg;base64,{data}"
    parts = [{"type": "image_url", "image_url": {"url": address, "detail": "high"}}, question]
    chat = client.chat.completions.create(model="x", messages=[{"role": "user", "content": parts}], max_tokens=8)
    without = client.chat.completions.create(model="x", messages=[{"role": "user", "content": [question]}], max_tokens=8)
    assert chat.usage.prompt_tokens == without.usage.prompt_tokens + 14, "twelve tokens and the two around them"
    stream = client.chat.completions.create(model="x", messages=[{"role": "user", "content": parts}], max_tokens=8, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert streamed == chat.choices[0].message.content
    parts = [{"type": "input_image", "image_url": address, "detail": "auto"}, {"type": "input_text", "text": "What is this?"}]
    response = client.responses.create(model="x", input=[{"role": "user", "content": parts}], max_output_tokens=8)
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    source = {"type": "base64", "media_type": "image/jpeg", "data": data}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, question]}]
    message = other.messages.create(model="x", max_tokens=8, messages=messages)
    assert message.content[0].text == chat.choices[0].message.content
    assert other.messages.count_tokens(model="x", messages=messages).input_tokens == chat.usage.prompt_tokens
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    turns = [*messages, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    other.messages.create(model="x", max_tokens=4, messages=turns)
    # What is no picture, and what lies elsewhere.
    source["data"] = base64.b64encode(b"no picture").decode()
    error = expect(anthropic.BadRequestError, lambda: other.messages.create(model="x", max_tokens=8, messages=messages))
    assert "messages[0].content[0].source.data" in error.message, error.message
    parts = [{"type": "image_url", "image_url": {"url": "https" + "://example.org/cat.png"}}]
    ask = lambda: client.chat.completions.create(model="x", messages=[{"role": "user", "content": parts}])
    assert expect(openai.BadRequestError, ask).param == "messages[0].content[0].image_url.url"


def main():
    with serving(sys.argv[1], "--api-key", "secret", "--temp", "0", "--threads", "2") as base:
        clients = (
            openai.OpenAI(base_url=f"{base}/v1", api_key="secret", max_retries=0),
            anthropic.Anthropic(base_url=base, api_key="secret", max_retries=0),
        )
        wrong = openai.OpenAI(base_url=f"{base}/v1", api_key="wrong", max_retries=0)
        expect(openai.AuthenticationError, wrong.models.list)
        for function in CHECKS:
            function(*clients)
            print(f"ok {function.__name__}", flush=True)
    with serving(sys.argv[1], "--temp", "0", "--threads", "2", *SEEING) as base:
        pictures(openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0), anthropic.Anthropic(base_url=base, api_key="none", max_retries=0))
        print("ok pictures")
    with serving(sys.argv[1], "-m", str(EMBEDDER), "--threads", "2") as base:
        openai_embeddings(openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0))
        print("ok openai_embeddings")


if __name__ == "__main__":
    main()
