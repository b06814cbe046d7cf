"""Puts the recipes into the wheel; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithRecipes(build_py):
    """`recipes/` of a checkout is `shoal/recipes/` of an installation."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "shoal" / "recipes"
            shutil.copytree("recipes", target, dirs_exist_ok=True)


setup(cmdclass={"build_py": WithRecipes})
