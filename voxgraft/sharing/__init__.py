"""Grafts and exports on their way to other people: zip files, hub repositories, and what may be in them."""
