"""A run of several arms and rounds: configured, made ready, carried out here or in other processes, resumed."""
