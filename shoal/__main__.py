"""``python -m shoal``: the command line without an installed script."""

from shoal.cli import main

if __name__ == "__main__":
    main()
