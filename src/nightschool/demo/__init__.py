"""A small shop, its support agent and its customers: the whole loop on one laptop."""
