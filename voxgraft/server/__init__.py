"""The speech server: OpenAI's speech endpoint over HTTP, several grafts on one base, continuous batching."""
