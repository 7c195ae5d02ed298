"""Hyper-parameters as a problem: a query is a training on one device."""
