"""`cbbench workload record`: prompts and the answers of a model, or of a server, made into a workload."""
