"""What runs inside of a companion environment, by path: nothing here may import voxgraft."""
