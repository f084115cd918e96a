"""Train the demo reader: `python -m tools.train_demo --help`, from the root of the repository."""
