"""Problems, methods and scores of ``benchmarks/compare.py``."""
