"""Variables that parameter servers keep: how they are sharded, how workers see them, and how servers update them."""
