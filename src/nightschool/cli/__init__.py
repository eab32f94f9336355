"""The command line: one file per command, each a thin call; `main` turns answers and errors into text or JSON."""
