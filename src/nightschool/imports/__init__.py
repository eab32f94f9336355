"""Logs of other tools into exchanges and feedback, and exports back."""
