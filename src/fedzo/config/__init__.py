"""TOML to a checked experiment, and many runs of experiments.

No experiment runs before all its settings are checked. ``shipped/`` holds the configurations that
come with the package. May import: api and the rooms below it.
"""
