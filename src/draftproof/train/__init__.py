"""Training of learned drafters for a target: its own text as data, one loop, one recipe per method."""
