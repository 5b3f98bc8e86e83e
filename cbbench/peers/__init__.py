"""Other systems on the same requests, in the same tables; one a file."""
