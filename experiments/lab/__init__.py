"""The lab: declared grids of small runs that show when a ratio fails, and what helps."""
