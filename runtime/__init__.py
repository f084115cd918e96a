"""Run an engine directory: numpy and an engine library, never torch."""
