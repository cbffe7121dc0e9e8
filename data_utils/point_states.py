"""Whether a point is there: the states of points, and what stands for them in files."""

FOUND = 0.5  # a point whose presence is less probable counts as not found

# the states of a point
UNKNOWN = 0  # nobody has labeled the point: neither loss nor scores count it
ABSENT = 1
PRESENT = 2
OUTSIDE = 3  # the point lies outside of the crop: in the loss it is absent, and scores do not count it
ABSENCES = {"unknown": UNKNOWN, "not-there": ABSENT}  # `--absent` -> the state for an empty cell in a table
