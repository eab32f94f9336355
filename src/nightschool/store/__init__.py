"""The store: one SQLite file that holds everything Nightschool knows."""
