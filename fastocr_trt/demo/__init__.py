"""The embedded demo reader and its page generator."""
