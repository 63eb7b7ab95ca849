"""Terminal output and input: tables, the live footer, the approval card and the line editor."""
