"""The facts of a data set that must be known before the first step, and the mistakes in it.

An inspection is what one look at a record finds, or at all records of a split: sizes, mask values, problems.
A problem is a mistake for which a record cannot be used; a warning is a line on a likely mistake, and nothing is left
out for it. A function `check_...` raises DataError for what would spoil a run. `check_data` makes the report of
--check-data, which lists all of these.
"""
