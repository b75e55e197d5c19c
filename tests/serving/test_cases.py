"""Which requests are sent, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.core.errors import BadUsage
from kclab.serving.cases import Case, Kind, choose_cases, read_cases
from kclab.serving.job import default_steps
from kclab.serving.model import Medium
from kclab.serving.payloads import payload_of


def choose(*names: str, file: Path | None = None, outputs: int = 1, image: Path | None = None,
           medium: Medium = Medium.IMAGE) -> list[Case]:  # fmt: skip
    return choose_cases(medium, names, file, outputs, image)


def test_all_own_cases_of_the_runtime_without_names() -> None:
    assert [case.name for case in choose()] == ["square", "landscape", "edit", "alpha"]
    assert [case.name for case in choose(medium=Medium.TEXT)] == ["completion", "chat"]


def test_order_is_kclabs_so_that_edit_finds_the_squares_image() -> None:
    assert [case.name for case in choose("edit", "square")] == ["square", "edit"]


def test_sizes_and_request_ids_are_the_agreed_ones() -> None:
    found = {case.name: (case.size, case.request_id) for case in choose(outputs=2)}
    assert found["landscape"] == ("1536x1024", "qwen_image21_landscape_batch2")
    assert {size for name, (size, _) in found.items() if name != "landscape"} == {"1024x1024"}
    assert choose("alpha")[0].request_id == "qwen_image21_alpha"


def test_edit_without_any_image_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"case edit needs an image .*--reference-image"):
        choose("edit")


def test_reference_image_is_what_edit_starts_from(tmp_path: Path) -> None:
    image = tmp_path / "photo.png"
    image.write_bytes(b"image")
    assert choose("edit", image=image)[0].reference == str(image)
    with pytest.raises(BadUsage, match="no such file"):
        choose("edit", image=tmp_path / "none.png")


def test_unknown_case_is_named_with_those_there_are() -> None:
    with pytest.raises(BadUsage, match=r"no case 'sqare' .* square, landscape"):
        choose("sqare")


def test_case_of_the_other_runtime_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, '[[case]]\nname = "a"\nkind = "chat"\nprompt = "p"')
    with pytest.raises(BadUsage, match="case a: chat is not for a diffusion model"):
        choose(file=file)


def write(folder: Path, text: str) -> Path:
    file = folder / "cases.toml"
    file.write_text(text)
    return file


def test_toml_cases_say_what_is_sent(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"image")
    file = write(
        tmp_path,
        """
        [[case]]
        name = "two"
        kind = "edit"
        prompt = "make it blue"
        size = "512x512"
        outputs = 3
        seed = 7
        reference = "photo.png"
        payload = { quality = "high" }
        """,
    )
    (case,) = read_cases(file)
    assert case.reference == str(tmp_path / "photo.png")
    assert case.request_id == "two_batch3"
    payload = payload_of(case, "M", 4)
    assert (payload["n"], payload["seed"], payload["size"]) == (3, 7, "512x512")
    assert payload["quality"] == "high"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no \\[\\[case\\]\\]"),
        ("[[case", "cases.toml"),
        ('[[case]]\nname = "a"\nkind = "image"', "case a: prompt is missing"),
        ('[[case]]\nname = "a"\nkind = "movie"\nprompt = "p"', "case a: kind 'movie'"),
        ('[[case]]\nname = "a"\nkind = "image"\nprompt = "p"\nsteps = 3', "no key 'steps'"),
        ('[[case]]\nname = "a"\nkind = "image"\nprompt = "p"\nseed = true', "seed is True"),
        ('[[case]]\nname = "a"\nkind = "image"\nprompt = "p"\noutputs = 0', "at least 1"),
        ('[[case]]\nname = "a"\nkind = "video"\nprompt = "p"\nsize = "big"', "size 'big'"),
        ('[[case]]\nname = "a"\nkind = "chat"\nprompt = "p"\n' * 2, "two cases are called 'a'"),
    ],
)
def test_senseless_toml_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        read_cases(write(tmp_path, text))


def test_a_file_of_cases_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(BadUsage) as refused:
        read_cases(tmp_path / "none.toml")
    assert str(refused.value) == f"--cases {tmp_path / 'none.toml'}: No such file or directory."


def test_image_payload_is_the_agreed_one() -> None:
    payload = payload_of(choose("square", outputs=4)[0], "Qwen-Image-2.1", 8)
    assert payload.pop("prompt")
    assert payload == {
        "model": "Qwen-Image-2.1",
        "size": "1024x1024",
        "n": 4,
        "num_inference_steps": 8,
        "guidance_scale": 1.0,
        "seed": 42,
        "response_format": "b64_json",
        "output_format": "png",
    }


def test_text_payloads_carry_the_prompt_in_their_own_way() -> None:
    completion, chat = (payload_of(c, "m", None) for c in choose(medium=Medium.TEXT))
    assert completion["prompt"] and completion["max_tokens"] == 8
    assert chat["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("outputs", "schedule", "steps"),
    [(1, 8, (0, 4, 7)), (2, 8, (0, 7)), (1, 5, (0, 4)), (4, 4, (0,)), (1, None, (0, 4, 7))],
)
def test_captured_steps_follow_outputs_and_schedule(
    outputs: int, schedule: int | None, steps: tuple[int, ...]
) -> None:
    assert default_steps([Case("a", Kind.IMAGE, "p", outputs=outputs)], schedule) == steps
