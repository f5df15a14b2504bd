"""How actors explore while they train."""
