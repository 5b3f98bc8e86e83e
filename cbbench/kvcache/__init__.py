"""Where keys and values live. One file a strategy; the file's name is its name in a config."""
