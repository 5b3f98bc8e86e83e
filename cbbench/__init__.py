"""cbbench: scheduler x attention x KV cache, interchangeable, on a real model, proved token for token.

`cbbench run workloads/mixed.yaml` shows it. The path in reading order: workload, schedulers, kvcache, attention,
model, engine, results, compare, report.
"""

__version__ = "0.1.0"
