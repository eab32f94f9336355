"""The embedded engine: an HTTP server that speaks the engine contract, on CPU or one GPU."""
