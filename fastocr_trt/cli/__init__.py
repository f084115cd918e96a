"""The commands: one small file each, one shared look."""
