"""Translation of other programs' agent definitions into native fields."""
