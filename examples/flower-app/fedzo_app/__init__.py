"""Federated training from loss values only: a Flower app."""
