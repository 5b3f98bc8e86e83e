"""The engine: the loop, what carries a step out, who is still to come, and the records of what happened."""
