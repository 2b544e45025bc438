"""One run: wired from a configuration, trained to its end, however it comes."""
