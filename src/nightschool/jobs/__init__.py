"""Long work as rows: leased by one worker at a time, retried when the worker dies."""
