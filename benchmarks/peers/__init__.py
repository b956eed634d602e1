"""The systems that compare.py sets side by side: a file each, which runs in that system's own environment, and what all of them share."""
