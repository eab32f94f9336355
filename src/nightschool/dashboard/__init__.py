"""The dashboard: pages that answer first, then show the evidence. Reads the store and changes nothing."""
