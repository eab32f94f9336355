"""Outside judgements: numbers, thumbs, texts, corrections and outcomes that find their exchange."""
