"""The configuration: from names and numbers in YAML to one typed, checked object."""
