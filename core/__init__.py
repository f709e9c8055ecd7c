"""What every room uses: errors, text, files, progress, commands, environment variables.

It needs the standard library alone; rich is imported inside functions.
May import: no other room.
"""
