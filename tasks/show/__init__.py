"""What tasks show of their models: printed and drawn with torch, so imported only when it is shown."""
