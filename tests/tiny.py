"""A random Llama small enough for any test, and its tokenizer, made in a second without a download."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
MERGED = (
    "th",
    "the",
    "in",
    "er",
    "on",
    "or",
    "ord",
    "order",
    " t",
    " a",
    " s",
    " the",
    "ing",
    "to",
    "ol",
    "tool",
    "us",
    "user",
)
CONTEXT = 4096


def make_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write config.json, model.safetensors (float32) and tokenizer.json into `folder`; returns it.

    2 layers, hidden 64, 4 heads, 2 key-value heads, tied head, 256 bytes + 3 specials + a few merges,
    context 4096. The same seed gives the same weights. Sets torch to one thread for this process:
    so small a model is slower on several, and waiting threads spin where tests share the machine.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=write_tiny_tokenizer(folder),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.15,  # the default 0.02 gives an almost uniform next token
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_teachable_model(folder: Path) -> Path:
    """The tiny model with a vector for its end of turn: as a padding token it has none, and could not be taught."""
    import torch
    from safetensors.torch import load_file, save_file

    make_tiny_model(folder)
    weights = load_file(folder / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"]
    embeddings[2] = 0.15 * torch.randn(embeddings.shape[1], generator=torch.Generator().manual_seed(0))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tiny_tokenizer(folder: Path) -> int:
    """Write a byte-level BPE tokenizer.json into `folder`; returns the size of the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    merges: list[tuple[str, str]] = []
    for token in (word.replace(" ", "Ġ") for word in MERGED):
        cuts = ((token[:cut], token[cut:]) for cut in range(len(token) - 1, 0, -1))
        pair = next((left, right) for left, right in cuts if left in vocab and right in vocab)
        merges.append(pair)
        vocab[token] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "pad_token": SPECIAL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(fast))
    return len(vocab)
