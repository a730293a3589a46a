"""The packages, with recipes/ as one of them: `bertvision study recipes/NAME.toml` works once it is installed."""

import sys

from setuptools import find_packages, setup

packages, places = find_packages("src"), {"": "src"}
if "editable_wheel" not in sys.argv:  # there the source tree has them
    packages, places = [*packages, "bertvision.recipes"], places | {"bertvision.recipes": "recipes"}
setup(packages=packages, package_dir=places)
