"""MiniLM fine-tuned on several nodes from losses alone."""
