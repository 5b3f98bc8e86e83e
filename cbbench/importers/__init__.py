"""Public trace and dataset formats, one a file: `azure` is azure.py."""
