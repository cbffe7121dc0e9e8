"""The settings of a run: its flags, the plan, the starting point, and the record of them."""
