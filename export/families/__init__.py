"""What differs per model family."""
