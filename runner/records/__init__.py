"""What a run leaves in its directory, and how it is read back."""
