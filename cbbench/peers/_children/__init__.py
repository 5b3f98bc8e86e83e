"""Scripts that a peer's own interpreter runs; they import nothing of cbbench, which is not installed there."""
