"""What a run is asked for: its flags, the plan, what it starts from, and what it records of them."""
