"""No network in tests, and a cache directory that outlives a test run only where the user's own does."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
