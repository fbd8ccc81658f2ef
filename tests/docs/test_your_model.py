"""The user's files of the guide are short; that they run is test_blocks.py's to say."""

from documents import DOCS, blocks

FILES = {block.file: block for block in blocks(DOCS / "guides" / "your_model.md") if block.file}


def test_a_users_file_has_at_most_25_lines():
    assert set(FILES) == {"frozen_images.py", "lora_text.py", "tables.py", "series.py", "shapes.py"}
    for name, block in FILES.items():
        assert len(block.text.splitlines()) <= 25, name
        compile(block.text, name, "exec")


def test_a_federation_of_devices_of_different_sizes_takes_at_most_30_lines():
    first = blocks(DOCS / "guides" / "devices.md")[0].text
    assert "federate(" in first and "architectures=" in first and len(first.splitlines()) <= 30
