"""Many runs as one: their order, their places and the table that compares them."""
