"""`cbbench workload import`: somebody's trace or dataset made into a workload. Begins in run.py; one file a format: cbbench/importers/."""
