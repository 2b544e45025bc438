"""Measurements on a GPU, against PyTorch on the same GPU. Hydra and MLflow are not needed."""
