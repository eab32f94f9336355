"""The exam between candidate and incumbent: evidence from the store, honest intervals, one decision."""
