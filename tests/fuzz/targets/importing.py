"""What `data import` reads: subtitles, lists of recordings, media files, manifests. A line may never go unsaid."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import soundfile

from tests.fuzz import byte_mutations, text_mutations
from tests.fuzz.target import Mutant, Random, Target
from voxgraft.audio.files import MediaReader
from voxgraft.data.lists import infer_recordings, read_transcript_list
from voxgraft.data.manifest import ManifestClip, SourceProblem, read_manifest, write_manifest
from voxgraft.data.subtitles import (
    clean_cues,
    dedupe_rolling_captions,
    parse_subtitles,
    read_encoded_text,
    read_subtitles,
    read_text_skipping_bad_lines,
)

LINE_ENDS = re.compile(r"\r\n|\n|\r")
RATE = 16_000
ODD_TIMES = (
    *(b"00:00:01,000 --> 00:00:02,000", b"99:99:99,999 --> 00:00:00,000", b"--> 00:00:01", b"00:01 -> 00:02", b"1:2:3"),
    *(b"00:00:01.5 --> 00:00:99", b"-00:00:01,000 --> 00:00:02,000", b"WEBVTT", b"NOTE x", b"STYLE", b"12", b""),
    *(b"[Events]", b"Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,x", b"Format: Text, Start", b"audio|text", b"|"),
)


def lines_moved(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Lines lost, doubled, moved, or another thing in their place."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(lines)) if lines else 0
        how = rng.randrange(4)
        if how == 0 and lines:
            del lines[at]
        elif how == 1 and lines:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif how == 2:
            lines.insert(at, rng.choice(ODD_TIMES))
        elif lines:
            lines[at] = re.sub(rb"\d", lambda _: str(rng.randrange(10)).encode(), lines[at])
    return b"\n".join(lines), "lines moved"


def text_mutant(target: Target, rng: Random) -> Mutant:
    """A text that was damaged by lines, by characters or by bytes."""
    seed, data = target.pick(rng)
    choice = rng.random()
    if choice < 0.1:
        mark, ends = rng.choice((b"", b"\xef\xbb\xbf")), rng.choice((b"\n", b"\r\n", b"\r"))
        return Mutant(seed, "marks and line ends", mark + data.replace(b"\n", ends), same=True)
    if choice < 0.45:
        made, how = lines_moved(data, rng)
    elif choice < 0.75:
        made, how = text_mutations.edited(data, rng)
    else:
        made, how = byte_mutations.damaged(data, rng)
    return Mutant(seed, how, made)


class SubtitleTarget(Target):
    """SRT, VTT and ASS, up to the words that are said."""

    name: ClassVar[str] = "subtitles"
    count: ClassVar[int] = 6000

    def make_seeds(self, folder: Path) -> None:
        blocks = [
            f"{at}\n00:00:{at:02d},000 --> 00:00:{at:02d},900\nአበበ፡ ሰላም {'ሀለሐመሠ'[at % 5]}\n<i>line</i> two"
            for at in range(1, 9)
        ]
        (folder / "a.srt").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        rolls = [
            f"00:0{at}.000 --> 00:0{at + 1}.000 align:start\n<v A>one {at}\n[music] one {at + 1}" for at in range(6)
        ]
        head = "WEBVTT\nKind: captions\n\nNOTE nothing\n\n"
        (folder / "b.vtt").write_text(head + "\n\n".join(rolls) + "\n", encoding="utf-8")
        events = [f"Dialogue: 0,0:00:0{at}.00,0:00:0{at}.90,Default,N,0,0,0,,{{\\i1}}ሰላም\\N{at}, x" for at in range(5)]
        form = "[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
        ass = "[Script Info]\nScriptType: v4.00+\n\n" + form + "\n".join(events) + "\n"
        (folder / "c.ass").write_text(ass, encoding="utf-8")

    def mutant(self, rng: Random) -> Mutant:
        return text_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / seed
        path.write_bytes(data)
        text = read_encoded_text(path)
        cues, problems = parse_subtitles(text, path.suffix, seed)
        reported = {line for problem in problems for line in problem.lines}
        used = {line for cue in cues for line in range(cue.line, cue.last_line + 1)}
        for number, line in enumerate(LINE_ENDS.split(text), 1):
            if line.strip() and number not in reported | used:
                assert _is_form(line, number, path.suffix, text, reported | used), (
                    f"line {number} went unsaid: {line[:80]!r}"
                )
        cleaned, unsaid = clean_cues(cues, "am", seed)
        last, again = dedupe_rolling_captions(cleaned, seed)
        lines = sorted([cue.line for cue in last] + [problem.line for problem in (*unsaid, *again)])
        assert lines == sorted(cue.line for cue in cues), "a cue went unsaid"
        return [(cue.start, cue.end, cue.text, cue.speaker) for cue in last]


def _is_form(line: str, number: int, ending: str, text: str, used: set[int]) -> bool:
    """Whether a line is form and no text: numbers, names of cues, heads and notes, styles."""
    if ending == ".ass":
        return not re.match(r"\s*(Dialogue|Comment)\s*:", line, re.IGNORECASE)
    if re.fullmatch(r"\s*\d+\s*", line):
        return True
    return ending == ".vtt" and (number + 1 in used or _in_note(LINE_ENDS.split(text), number))


def _in_note(lines: list[str], number: int) -> bool:
    first = number
    while first > 1 and lines[first - 2].strip():
        first -= 1
    head = lines[first - 1]
    if any(
        re.search(r"\d\s{0,4}:\s{0,4}\d", line) and re.search(r"-\s{0,4}>", line) for line in lines[first - 1 : number]
    ):
        return False  # notes hold no times
    return bool(
        re.match(r"(NOTE|STYLE|REGION)(?:[ \t]|$)", head) or (first == 1 and re.match(r"WEBVTT(?:[ \t]|$)", head))
    )


class ListTarget(Target):
    """metadata.csv in its forms, and JSON lines."""

    name: ClassVar[str] = "recording-list"
    count: ClassVar[int] = 6000

    def make_seeds(self, folder: Path) -> None:
        pairs = [(f"r{at}-{at:03d}", f"ሰላም ቁጥር {at}, አለ") for at in range(8)]
        (folder / "lj.csv").write_text("".join(f"{a}|{t}|{t}\n" for a, t in pairs), encoding="utf-8")
        (folder / "tab.tsv").write_text("audio\ttext\n" + "".join(f"{a}\t{t}\n" for a, t in pairs), encoding="utf-8")
        quoted = "file_name,transcription,speaker\n" + "".join(f'{a},"{t}",s{a[1]}\n' for a, t in pairs)
        (folder / "quoted.csv").write_text(quoted, encoding="utf-8")
        lines = [
            f'{{"audio": "{a}.wav", "text": "{t}", "start": {n}.5, "end": {n + 2}}}\n' for n, (a, t) in enumerate(pairs)
        ]
        (folder / "lines.jsonl").write_text("".join(lines), encoding="utf-8")

    def mutant(self, rng: Random) -> Mutant:
        return text_mutant(self, rng)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / seed
        path.write_bytes(data)
        found = list(read_transcript_list(path))
        rows = [item for item in found if not isinstance(item, SourceProblem)]
        infer_recordings(rows)
        if seed != "quoted.csv":  # there a row may go over several lines
            reported = {line for item in found if isinstance(item, SourceProblem) for line in item.lines}
            reported |= {row.line for row in rows}
            lines = [
                (number, line)
                for number, line in enumerate(LINE_ENDS.split(read_encoded_text(path)), 1)
                if line.strip()
            ]
            silent = [
                line
                for number, line in lines
                if number not in reported and line.strip("|\t ;,\v\f\x1c\x85\u2028\u2029\u00a0")
            ]
            heads = [line for line in silent if re.search(r"audio|id|file|voxgraft_manifest", line, re.IGNORECASE)]
            assert len(silent) == len(heads), f"lines went unsaid: {silent[:3]!a:.300}"
        return [(row.audio, row.text, row.speaker, row.start, row.end) for row in rows]


class CorpusTarget(Target):
    """Kaldi folders, GPT-SoVITS and festival lists, TextGrids and labels. A line of a list may never go unsaid."""

    name: ClassVar[str] = "corpus"
    count: ClassVar[int] = 6000

    def make_seeds(self, folder: Path) -> None:
        names = [f"spk{at % 2}-u{at}" for at in range(8)]
        tables = {
            "text": [f"{name} ሰላም ቁጥር {at}" for at, name in enumerate(names)],
            "wav.scp": ["talk1 audio/talk1.wav", "talk2 sph2pipe -p audio/talk2.sph |", "talk3 /data/talk3.wav"],
            "utt2spk": [f"{name} {name[:4]}" for name in names],
            "segments": [f"{name} talk{at % 3 + 1} {at}.5 {at + 2}.25" for at, name in enumerate(names)],
            "a.list": [f"audio/{name}.wav|s{at % 2}|ZH|ሰላም | {at}" for at, name in enumerate(names)],
            "txt.done.data": [f'( {name} "ሰላም \\"{at}\\" አለ" )' for at, name in enumerate(names)],
            "transcripts.txt": [f"{at}_20_00000{at}\tሰላም {at}" for at in range(8)],
            "labels.txt": [f"{at}.100000\t{at}.900000\tሰላም {at}" for at in range(8)],
        }
        grid = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", "xmax = 9", "tiers? <exists>"]
        grid += ["size = 2", "item []:"]
        for at, title in enumerate(("anna - words", "anna - phones"), 1):
            grid += [f"item [{at}]:", 'class = "IntervalTier"', f'name = "{title}"', "xmin = 0", "xmax = 9"]
            grid += ["intervals: size = 4"]
            for number in range(4):
                times = [f"xmin = {number}.25", f"xmax = {number + 1}.25"]
                grid += [f"intervals [{number + 1}]:", *times, f'text = "ሰላም ""{number}"""']
        for name, lines in {**tables, "a.TextGrid": grid}.items():
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def mutant(self, rng: Random) -> Mutant:
        mutant = text_mutant(self, rng)
        return Mutant(mutant.seed, mutant.how, mutant.data)  # a carriage return inside quotes is text, not a line end

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        kaldi = ("text", "wav.scp", "utt2spk", "segments")
        for name in kaldi if seed in kaldi else ():
            (scratch / name).write_bytes(self.seeds[name])
        path = scratch / seed
        path.write_bytes(data)
        if seed in ("labels.txt", "a.TextGrid"):
            cues, problems = read_subtitles(path)
            assert all(0 < cue.end - cue.start < 1e6 and cue.text.strip() for cue in cues)
            said = {number for cue in cues for number in range(cue.line, cue.last_line + 1)}
            said |= {line for problem in problems for line in problem.lines}
        else:
            listed = scratch / "text" if seed in kaldi else path
            found = list(read_transcript_list(listed))
            rows = [item for item in found if not isinstance(item, SourceProblem)]
            assert all(row.audio and row.text.strip() for row in rows)
            assert all(row.end is None or 0 <= row.start < row.end for row in rows)
            infer_recordings(rows)
            reported = [item for item in found if isinstance(item, SourceProblem) and item.file == listed.name]
            said = {row.line for row in rows} | {line for item in reported for line in item.lines}
            path = listed
        if seed != "a.TextGrid":
            for number, line in enumerate(LINE_ENDS.split(read_text_skipping_bad_lines(path)[0]), 1):
                is_form = not line.strip() or number in said or line.startswith("\\")
                assert is_form or not line.strip("|\t ;,\v\f\x1c\x85\u2028\u2029\u00a0"), f"line {number} went unsaid"
        return len(said)


class MediaTarget(Target):
    """WAV files with damaged heads, and other sound files."""

    name: ClassVar[str] = "media"
    count: ClassVar[int] = 4000

    def make_seeds(self, folder: Path) -> None:
        noise = np.random.default_rng(0).normal(0, 0.1, 4_000)
        for name, kind, subtype in (
            ("a", "WAV", "PCM_16"),
            ("b", "WAV", "FLOAT"),
            ("c", "FLAC", "PCM_16"),
            ("d", "WAVEX", "PCM_24"),
        ):
            stream = io.BytesIO()
            soundfile.write(stream, noise, RATE, format=kind, subtype=subtype)
            (folder / f"{name}.{'flac' if kind == 'FLAC' else 'wav'}").write_bytes(stream.getvalue())

    def mutant(self, rng: Random) -> Mutant:
        seed, data = self.pick(rng)
        if rng.random() < 0.7:  # the head is where the numbers are
            head, how = byte_mutations.damaged(data[:80], rng)
            return Mutant(seed, f"head: {how}", head + data[80:])
        made, how = byte_mutations.damaged(data, rng)
        return Mutant(seed, how, made)

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / seed
        path.write_bytes(data)
        media, total = MediaReader(path, 24_000), 0
        for block in media.blocks():
            total += len(block)
            assert np.isfinite(block).all()
        return total


class ManifestTarget(Target):
    """Our own manifest."""

    name: ClassVar[str] = "manifest"
    count: ClassVar[int] = 3000

    def make_seeds(self, folder: Path) -> None:
        clips = [
            ManifestClip(
                f"c{at}", f"clips/c{at}.flac", 1.5, "ሰላም", "am", "s", "r", 24_000, "ሰላም።", 1.0, 2.5, f"a.srt:{at}"
            )
            for at in range(4)
        ]
        write_manifest(folder / "manifest.jsonl", clips)

    def mutant(self, rng: Random) -> Mutant:
        mutant = text_mutant(self, rng)
        # A line end in the middle of nothing is a form of JSON lines only where the reader knows it.
        return Mutant(mutant.seed, mutant.how, mutant.data) if b"\r" in mutant.data else mutant

    def read(self, data: bytes, seed: str, scratch: Path) -> object:
        path = scratch / seed
        path.write_bytes(data)
        return list(read_manifest(path))
