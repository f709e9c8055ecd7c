"""What every other package uses. It imports only the standard library, and rich inside functions."""
