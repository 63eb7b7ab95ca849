"""What things are: nouns and rules, without any input or output."""
