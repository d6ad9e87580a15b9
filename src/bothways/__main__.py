"""python -m bothways: the same as the `bothways` command, for torchrun."""

from bothways.cli import main

if __name__ == "__main__":
    main()
