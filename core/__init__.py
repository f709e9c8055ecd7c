"""What all other rooms use. It imports the standard library alone, and rich inside of functions."""
