"""Images and tables that links would count twice, images of 16 bits in colour, and names of folders."""

import os
from functools import partial

import refusals
from image_files import write_class_folders
from PIL import Image

from fedpart.data import load_image_folder
from fedpart.data.sets.table import table_files


def test_what_a_link_would_count_twice(tmp_path):
    rows = []
    for i, (link, to) in enumerate(
        [("red/latest", "."), ("red/up", ".."), ("red/more", "../blue"), ("red/new.png", "00.png")]
    ):
        root = tmp_path / f"{i}"
        write_class_folders(root, 4, odd=False)
        load_image_folder(str(root))
        os.symlink(to, root / link)
        rows.append((link, partial(load_image_folder, str(root)), "one by a link, .* remove the link"))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "train.csv").write_text("a,b\n1,2\n")
    os.symlink("train.csv", tmp_path / "t" / "test.csv")
    rows.append(("a table", partial(table_files, tmp_path / "t"), "one by a link"))
    refusals.check(rows)


def test_a_class_is_one_however_its_folder_is_written(tmp_path):
    write_class_folders(tmp_path / "train", 4, odd=False)
    for part, name in (("train", "Z\u00fcrich"), ("test", "Zu\u0308rich")):
        (tmp_path / part / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / part / name / "a.png")
    assert load_image_folder(str(tmp_path), validation=0).classes == ("Z\u00fcrich", "blue", "green", "red")
