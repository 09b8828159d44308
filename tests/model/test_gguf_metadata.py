from __future__ import annotations

import gguf
import pytest

from litspec.model.gguf_metadata import GgufError, read_metadata


def write(path, fill) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_every_kind_of_value_is_read_as_gguf_reads_it(tmp_path):
    path = tmp_path / "m.gguf"

    def fill(writer: gguf.GGUFWriter) -> None:
        for kind, value in (
            ("uint8", 200), ("int8", -100), ("uint16", 60000), ("int16", -30000), ("uint32", 4_000_000_000),
            ("int32", -2_000_000_000), ("uint64", 2**63), ("int64", -(2**62)), ("float32", 0.5), ("float64", 0.1),
            ("bool", True), ("string", "naïve 🦊"),
        ):  # fmt: skip
            getattr(writer, f"add_{kind}")(f"x.{kind}", value)
        writer.add_array("x.ints", [1, -2, 3])
        writer.add_array("x.floats", [0.25, -1.5])
        writer.add_array("x.strings", ["a", "", "Ġthe"])
        writer.add_array("x.bools", [True, False])

    write(path, fill)
    reader = gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert read_metadata(path) == expected
    assert expected["x.string"] == "naïve 🦊"


def test_a_file_that_is_cut_short_anywhere_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, lambda writer: writer.add_array("x.strings", ["some", "strings"]))
    data = path.read_bytes()
    end = data.rindex(b"strings") + len(b"strings")
    for length in range(end):
        path.write_bytes(data[:length])
        with pytest.raises(GgufError, match=r"m\.gguf"):
            read_metadata(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not a model at all", "not a GGUF file"),
        (b"GGUF" + (99).to_bytes(4, "little") + bytes(16), "version 99"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + b"\xff" * 8 + b"\xff" * 8, "cut short"),
    ],
)
def test_what_is_no_gguf_is_refused(data, reason, tmp_path):
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(GgufError, match=reason):
        read_metadata(tmp_path / "m.gguf")


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(GgufError, match=r"none\.gguf"):
        read_metadata(tmp_path / "none.gguf")
