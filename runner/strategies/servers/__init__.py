"""Variables on parameter servers: their distribution, the views of workers, and updates."""
