"""The settings of a run: its flags, the plan, what it starts from, and what it records of them."""
