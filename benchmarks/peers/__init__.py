"""Other frameworks as subjects. Each module runs in an environment that has its framework and NumPy, not runner."""
