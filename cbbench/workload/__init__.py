"""A recorded workload: what is asked of the engine. Begins in file.py; its format is described in workloads/README.md."""
