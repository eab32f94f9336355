"""Messages <-> tokens: the chat format, tool-call syntax, and the splice of replies already sampled."""
