"""Speed of engines: a matrix of cases, measured in turns, reported with the machine that the numbers belong to."""
