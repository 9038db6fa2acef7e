"""Sound comes out of any media file in step with its clock; what is broken is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from voxgraft.audio.files import AudioSamples, MediaReader, read_clip_audio, write_clip_audio
from voxgraft.core.errors import VoxgraftError

RATE = 24_000


def _clicks(rate: int, seconds: float = 6.0) -> AudioSamples:
    """A soft hiss with a short tone at every second."""
    samples = np.random.default_rng(0).normal(0, 1e-4, round(rate * seconds)).astype(np.float32)
    tone = (0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate // 50) / rate)).astype(np.float32)
    for second in range(1, int(seconds)):
        samples[second * rate : second * rate + len(tone)] += tone
    return samples


def _encode(
    path: Path, samples: AudioSamples, rate: int, codec: str, layout: str = "mono", video: bool = False
) -> None:
    with av.open(str(path), "w") as container:
        if video:
            picture = container.add_stream("mpeg4", rate=5)
            picture.width = picture.height = 64
            picture.pix_fmt = "yuv420p"
        stream: Any = container.add_stream(codec, rate=rate, layout=layout)
        if video:
            for _ in range(10):
                frame = av.VideoFrame(64, 64, "yuv420p")
                container.mux(picture.encode(frame))
            container.mux(picture.encode(None))
        channels = 2 if layout == "stereo" else 1
        data = np.tile(samples, (channels, 1))
        for at in range(0, data.shape[1], 1024):
            frame_ = av.AudioFrame.from_ndarray(np.ascontiguousarray(data[:, at : at + 1024]), "fltp", layout)
            frame_.sample_rate, frame_.pts = rate, at
            container.mux(stream.encode(frame_))
        container.mux(stream.encode(None))


def _heard(path: Path) -> tuple[AudioSamples, MediaReader]:
    media = MediaReader(path, RATE)
    return np.concatenate(list(media.blocks())), media


@pytest.mark.parametrize(
    ("name", "codec", "layout", "rate"),
    [
        ("a.mp4", "aac", "stereo", 44_100),
        ("a.mkv", "aac", "mono", 48_000),
        ("a.mp3", "libmp3lame", "stereo", 44_100),
        ("a.webm", "libopus", "mono", 48_000),
        ("a.flac", "flac", "mono", 22_050),
        ("a.ts", "aac", "mono", 48_000),
    ],
)
def test_tones_stand_where_they_stood_in_every_format(
    tmp_path: Path, name: str, codec: str, layout: str, rate: int
) -> None:
    path = tmp_path / name
    if codec == "flac":
        soundfile.write(path, _clicks(rate), rate)
    else:
        _encode(path, _clicks(rate), rate, codec, layout, video=name.endswith((".mp4", ".mkv")))
    heard, media = _heard(path)
    assert not media.damaged
    assert len(heard) == pytest.approx(6 * RATE, abs=0.1 * RATE)
    loud = np.flatnonzero(np.abs(heard) > 0.2)
    starts = loud[np.flatnonzero(np.diff(loud, prepend=-RATE) > RATE // 2)] / RATE
    assert starts == pytest.approx([1, 2, 3, 4, 5], abs=0.03)


@pytest.mark.long(fast="DOUBLE")
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_every_kind_of_sample_comes_out_alike(tmp_path: Path, subtype: str) -> None:
    soundfile.write(tmp_path / "a.wav", _clicks(RATE), RATE, subtype=subtype)
    heard, _ = _heard(tmp_path / "a.wav")
    assert heard == pytest.approx(_clicks(RATE), abs=0.01 if subtype == "PCM_U8" else 1e-4)


def test_a_file_that_was_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    _encode(tmp_path / "a.mp3", _clicks(44_100), 44_100, "libmp3lame")
    data = (tmp_path / "a.mp3").read_bytes()
    (tmp_path / "a.mp3").write_bytes(data[: len(data) // 2])
    heard, _ = _heard(tmp_path / "a.mp3")
    assert len(heard) == pytest.approx(3 * RATE, abs=0.2 * RATE)


def test_damage_in_the_middle_is_reported_and_the_rest_stays_in_its_place(tmp_path: Path) -> None:
    _encode(tmp_path / "a.ts", _clicks(48_000), 48_000, "aac")
    data = bytearray((tmp_path / "a.ts").read_bytes())
    middle = len(data) // 188 // 2 * 188
    for at in range(middle, middle + 40 * 188, 188):
        data[at + 20 : at + 180] = bytes(160)
    (tmp_path / "a.ts").write_bytes(data)
    heard, media = _heard(tmp_path / "a.ts")
    assert media.damaged
    loud = np.flatnonzero(np.abs(heard) > 0.2) / RATE
    assert loud.max() == pytest.approx(5.02, abs=0.05)


@pytest.mark.parametrize("data", [b"not a sound", b"RIFF\x24\x00\x00\x00WAVEfmt ", b"ID3\x04" + bytes(500)])
def test_what_is_no_sound_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(VoxgraftError) as caught:
        _heard(tmp_path / "a.wav")
    assert caught.value.code == "media-unreadable"


def test_a_rate_that_nobody_records_at_is_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(500, np.float32), 100)
    with pytest.raises(VoxgraftError) as caught:
        _heard(tmp_path / "a.wav")
    assert caught.value.code == "media-rate"


@pytest.mark.parametrize("ending", ["flac", "wav"])
def test_a_clip_reads_back_as_it_was_written(tmp_path: Path, ending: str) -> None:
    samples = _clicks(RATE, 2.0)
    write_clip_audio(tmp_path / "x" / f"a.{ending}", samples, RATE)
    again, rate = read_clip_audio(tmp_path / "x" / f"a.{ending}")
    assert rate == RATE
    assert again == pytest.approx(samples, abs=1 / 32_000)
    assert [path.name for path in (tmp_path / "x").iterdir()] == [f"a.{ending}"]
