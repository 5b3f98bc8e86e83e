"""What this machine is."""
