"""Traces as pictures: a heat map, a moving gaze, a page to look at in a browser. Pillow and numpy, no more."""
