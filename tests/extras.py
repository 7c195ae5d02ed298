"""Libraries that are not among fedzo's own dependencies, and what brings them."""

EXTRAS = {
    "accelerate": "text",
    "dp_accounting": "flower",
    "flwr": "flower",
    "gguf": "text",
    "griffe": "docs",
    "latex2mathml": "docs",
    "mkdocs": "docs",
    "mkdocstrings": "docs",
    "mlflow": "track",
    "onnx": "dev",
    "onnxruntime": "attack",
    "onnxscript": "dev",
    "opendp": "flower",
    "optuna": "tune",
    "pandas": "dev",
    "polars": "dev",
    "ray": "flower",
    "safetensors": "torch",
    "sklearn": "tune",
    "sqlalchemy": "track",
    "tensorboard": "track",
    "torch": "torch",
    "transformers": "text",
}


def needed(error):
    """Return what to install where an import fails for want of an extra; None for other errors."""
    library = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or library not in EXTRAS:
        return None
    return f"needs {library}: pip install 'fedzo[{EXTRAS[library]}]'"
