"""The tests of the package, by unittest."""
