"""What scripts/bench measures, one file per group of rows. Python's standard library only."""
