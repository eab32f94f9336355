"""Base models and adapters: fetch, load, attach LoRA. Shared by the engine and the training."""
