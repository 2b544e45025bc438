"""Measurements on a GPU, against PyTorch on the same GPU. Nothing here needs Hydra or MLflow."""
