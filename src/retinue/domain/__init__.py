"""Values and pure rules, without input or output."""
