"""A seeded attack on the whole program: `make torture`, or `python -m torture --only damage --minutes 5`."""
