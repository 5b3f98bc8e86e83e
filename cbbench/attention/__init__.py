"""How sequences of different lengths go through the model. One file a strategy; the file's name is its name in a config."""
