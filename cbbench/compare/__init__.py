"""Is it faster, or slower than before? Statistics, verdicts, baselines and the gate. Needs no torch."""
