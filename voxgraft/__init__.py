"""voxgraft teaches a pretrained text-to-speech language model a new language and proves that it keeps the old ones."""

__all__ = ["__version__"]
__version__ = "0.1.0"
