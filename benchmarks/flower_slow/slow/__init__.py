"""Four nodes whose speeds are spread over a factor of 10."""
