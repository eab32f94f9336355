"""What durability.py kills: a process that works on the store, and a gateway in the middle of its traffic."""
