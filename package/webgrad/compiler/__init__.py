"""From a graph to a program: simplify, schedule, plan, program."""
