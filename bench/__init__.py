"""The measurements of scripts/bench, one file per group of rows. Python's standard library only."""
