"""`discreet images`: folders of pictures to one `.npz` file."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import flags as shared
from discreet.cli.flags import JsonFlag, emit, flag
from discreet.core import check
from discreet.core.files import check_file, replace_file


def images(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of pictures.", show_default=False)],
    classes: Annotated[str | None, flag("One folder below FOLDER for each class, e.g. cat,dog.")] = None,
    out: Annotated[Path | None, flag("The .npz file to write. Required.")] = None,
    size: Annotated[int, flag("Pixels in height and width (default: 32).")] = 32,
    grey: Annotated[bool, flag("One channel instead of three.")] = False,
    test: Annotated[Path | None, flag("A folder of test pictures, which no epsilon protects.")] = None,
    hold_out: Annotated[float | None, flag("Or a share of the pictures to test on; not protected.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Store folders of pictures as one .npz file for `train` and `compare`; without --classes for `predict`."""
    shared.require_all({"out": "pictures.npz"}, out=out)
    assert out is not None
    check.require(out.suffix == ".npz", "--out to end in .npz", str(out), "name an npz file")
    check_file(out)
    import numpy as np

    from discreet.data import pictures

    if classes is None:
        extra = [name for name, value in (("--test", test), ("--hold-out", hold_out)) if value is not None]
        check.require(not extra, f"--classes with {' and '.join(extra)}", "none", "list the names of the folders")
        arrays, names = pictures.unlabelled(folder, size=size, grey=grey), []
    else:
        names = [name.strip() for name in classes.split(",")]
        arrays = pictures.packed(folder, names, size=size, grey=grey, test=test, hold_out=hold_out)
    replace_file(out, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    shape = [1 if grey else 3, size, size]
    if as_json:
        emit({"file": str(out), "shape": shape, "classes": dict(zip(names, range(len(names)), strict=True))})
        return 0
    print(f"{out}: pictures of {' x '.join(map(str, shape))} bytes, as private as the files")
    if names:
        print("classes: " + ", ".join(f"{place} {name}" for place, name in enumerate(names)))
        features = f"--preset image --public-records {'mnist' if grey else 'cifar10'}"
        flags = f"--data {out} --classes {len(names)} --records NUMBER {features}"
        print(f"next: discreet train {flags} --epsilon 3 --delta 1e-5 --out runs/images")
    return 0
