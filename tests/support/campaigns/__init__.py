"""Long campaigns with a command line each; the tests run a small part of them."""
