"""What the command line offers: one verb per file."""
