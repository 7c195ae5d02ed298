"""The version, in a separate module, so that reading it imports nothing."""

__version__ = "0.2.0"
