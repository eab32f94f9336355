"""The client of any engine: embedded, vLLM, or another OpenAI-compatible server."""
