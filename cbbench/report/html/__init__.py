"""`cbbench report`: saved runs on one page. Begins in report.py."""
