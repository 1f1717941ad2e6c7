"""A discrete-event simulator that runs the planner's own policy functions on generated or recorded load, without a database or agents."""
