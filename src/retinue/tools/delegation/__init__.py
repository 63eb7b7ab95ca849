"""The ways for a model to start other agents: each with the name, the arguments and the words its users know."""
