"""What a run will take, before anything is downloaded or started: memory, time, cost."""
