"""A PyTorch app on Flower."""
