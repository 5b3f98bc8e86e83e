"""When requests share a batch. One file a strategy; the file's name is its name in a config."""
