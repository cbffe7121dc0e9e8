"""What must be known of a data set before the first step, and what is wrong with it."""
