"""When requests share a batch. One file per strategy; the file's name is its name in a config."""
