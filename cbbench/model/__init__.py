"""The real Hugging Face model: where it comes from, how its layers are made ready, and where they call our attention."""
