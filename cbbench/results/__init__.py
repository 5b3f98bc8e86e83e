"""What a run left on disk, and the numbers and tables made from it. Needs no torch."""
