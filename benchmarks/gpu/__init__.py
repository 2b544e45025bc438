"""Measurements on a card, against PyTorch on the same card. Nothing here needs Hydra or MLflow."""
