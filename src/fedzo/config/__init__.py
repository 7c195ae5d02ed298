"""TOML to a checked experiment.

A table's keys are the parameters of what it makes, and nothing runs before all of them are right;
``shipped/`` holds the configurations that come with the package. May import: api and
what lies below it.
"""
