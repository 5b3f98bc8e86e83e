"""`cbbench plot`: saved runs as pictures in files. Begins in kinds.py."""
