"""`cbbench show`: saved runs in characters. Begins in show.py."""
