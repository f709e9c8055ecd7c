"""What every room needs, and what needs none of them: the standard library, and rich inside of functions."""
